"""Matrices and vectors of geometry, by the names that ``weft.math`` and Taichi have for them.

Written in the language itself: in a kernel they are inlined. Rotations in space are 4 x 4, for
coordinates as rows: ``v @ m`` turns ``v`` as the right hand has it, so ``m @ v`` turns it back.
"""

from __future__ import annotations

from typing import Any

from weft.lang import math
from weft.lang.vectors import Matrix, Vector


def vdir(angle: Any) -> Any:
    """The vector of length 1 at ``angle`` (radians) from the x axis, with 2 elements."""
    return Vector([math.cos(angle), math.sin(angle)])


def rotation2d(angle: Any) -> Any:
    """The 2 x 2 matrix ``m`` with ``m @ v`` turned by ``angle`` (radians), counter-clockwise."""
    cosine, sine = math.cos(angle), math.sin(angle)
    return Matrix([[cosine, -sine], [sine, cosine]])


def rot_by_axis(axis: Any, angle: Any) -> Any:
    """The rotation by ``angle`` (radians) around ``axis``, a vector of 3 elements of any length
    but 0 (the formula of Rodrigues)."""
    a = axis / axis.norm()
    cosine, sine = math.cos(angle), math.sin(angle)
    rest = (1.0 - cosine) * a
    return Matrix([
        [rest.x * a.x + cosine, rest.x * a.y + sine * a.z, rest.x * a.z - sine * a.y, 0.0],
        [rest.y * a.x - sine * a.z, rest.y * a.y + cosine, rest.y * a.z + sine * a.x, 0.0],
        [rest.z * a.x + sine * a.y, rest.z * a.y - sine * a.x, rest.z * a.z + cosine, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    ])  # fmt: skip


def rot_yaw_pitch_roll(yaw: Any, pitch: Any, roll: Any) -> Any:
    """The rotation (4 x 4) by ``roll`` around z, then ``pitch`` around x, then ``yaw`` around y, of
    coordinates as rows; radians."""
    first = rot_by_axis(Vector([0.0, 0.0, 1.0]), roll)
    second = rot_by_axis(Vector([1.0, 0.0, 0.0]), pitch)
    return first @ second @ rot_by_axis(Vector([0.0, 1.0, 0.0]), yaw)


def rotation3d(x: Any, y: Any, z: Any) -> Any:
    """Taichi's: ``rot_yaw_pitch_roll(z, x, y)``."""
    return rot_yaw_pitch_roll(z, x, y)


def translate(x: Any, y: Any, z: Any) -> Any:
    """The 4 x 4 matrix ``m`` with ``m @ (p, 1)`` moved by (x, y, z)."""
    return Matrix([[1.0, 0.0, 0.0, x], [0.0, 1.0, 0.0, y], [0.0, 0.0, 1.0, z],
                   [0.0, 0.0, 0.0, 1.0]])  # fmt: skip


def scale(x: Any, y: Any, z: Any) -> Any:
    """The 4 x 4 matrix with (x, y, z, 1) on its diagonal."""
    return Matrix([[x, 0.0, 0.0, 0.0], [0.0, y, 0.0, 0.0], [0.0, 0.0, z, 0.0],
                   [0.0, 0.0, 0.0, 1.0]])  # fmt: skip


def refract(v: Any, normal: Any, eta: Any) -> Any:
    """The direction of a ray ``v`` behind a surface with this unit normal, ``eta`` being the ratio
    of the indices of refraction; zeros where all is reflected (GLSL's ``refract``)."""
    along = v.dot(normal)
    rest = 1.0 - eta * eta * (1.0 - along * along)
    through = rest >= 0.0
    root = math.sqrt(math.select(through, rest, 1.0))
    return math.select(through, eta * v - (eta * along + root) * normal, 0.0 * v)


# --- complex numbers as vectors of 2 elements -----------------------------------------------------
def cconj(z: Any) -> Any:
    """The conjugate."""
    return Vector([z.x, -z.y])


def cmul(z: Any, w: Any) -> Any:
    """The product."""
    return Vector([z.x * w.x - z.y * w.y, z.x * w.y + z.y * w.x])


def cinv(z: Any) -> Any:
    """``1 / z``."""
    return cconj(z) / z.norm_sqr()


def cdiv(z: Any, w: Any) -> Any:
    """The quotient."""
    return cmul(z, cinv(w))


def cexp(z: Any) -> Any:
    """The exponential."""
    return math.exp(z.x) * vdir(z.y)


def clog(z: Any) -> Any:
    """The logarithm, with an angle between -pi and pi."""
    return Vector([0.5 * math.log(z.norm_sqr()), math.atan2(z.y, z.x)])


def cpow(z: Any, n: Any) -> Any:
    """``z`` to the real power ``n``; 0 of 0. The derivative there is 0, and 1 of ``n = 1``."""
    none = z.norm_sqr() == 0.0
    x = math.select(none, 1.0, z.x)
    found = (x * x + z.y * z.y) ** (0.5 * n) * vdir(n * math.atan2(z.y, x))
    return math.select(none, math.select(n == 1.0, 1.0, 0.0) * z, found)


def csqrt(z: Any) -> Any:
    """The square root with a real part that is not negative."""
    return cpow(z, 0.5)
