"""The class whose objects random kernels change."""

POINT = """
import dataclasses


@dataclasses.dataclass
class P:
    a: float
    b: float

    def grow(self, by):
        self.a += by
        if by > 0:
            self.b = self.b * 0.5 - by
        return self

"""
