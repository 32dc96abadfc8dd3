"""One operator of a kernel: its schema, its implementations, its derivatives."""

from __future__ import annotations

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import has_side_effect

from weft.errors import GradientError, KernelTypeError, KernelValueError, warn
from weft.frames import shorten, user_frames
from weft.frontend.parameters import EMPTY, as_call, returned_types
from weft.frontend.returns import Returned, tensors_of
from weft.lang.dtypes import DType, tensor_of
from weft.pytorch import flops
from weft.pytorch.ambient import Ambient, under
from weft.pytorch.around import Around
from weft.pytorch.batches import storage
from weft.pytorch.boxed import BoxedBackward, BoxedKernel, Found, boxed_kernel
from weft.pytorch.changing import CHANGING, number_in
from weft.pytorch.derivative_ops import Rule, is_plain, register
from weft.pytorch.derivatives import Made
from weft.pytorch.fake import fake_launchers, without_data
from weft.pytorch.forward_level import has_dual
from weft.pytorch.hidden import reaches, seen
from weft.pytorch.inputs import items
from weft.pytorch.namespace import Family, in_ascii, namespace_of, without_defaults
from weft.pytorch.samples_op import Samples
from weft.pytorch.skip_forward import ConstantResults, NeedsOutputs, replaying, returned_names
from weft.pytorch.transforms import is_float
from weft.runtime.launch import KernelLike, gradient_error
from weft.runtime.overlap import OverlapWarning
from weft.values import frozen, mutable

if TYPE_CHECKING:
    from weft.pytorch.cost import Counter

_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_VERSIONS = torch._C.DispatchKey.ADInplaceOrView  # counts how often a tensor was written to
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@mutable
class Operator:
    """One operator of a kernel. ``types``: the schema type of each parameter, "" where its value is
    fixed, in which case it is in ``fixed``."""

    overload: Any
    types: tuple[str, ...]
    fixed: dict[str, Any]
    rule: Rule | None  # its derivative
    form: OperatorForm


@frozen
class OperatorForm:
    """What an operator of a kernel is like. ``types``: the schema type of each parameter, "" where
    its value is fixed, in which case it is in ``constants``; ``defaults``: what parameters are that
    a caller leaves out; ``written``: the names of those that it writes to; ``ambient``: what its
    host part runs under; ``fuses``: whether Inductor may take it apart; ``copies``: whether it
    returns copies of arguments that a loop has written to."""

    kernel: KernelLike
    returned: Returned
    namespace: str
    types: tuple[str, ...]
    constants: dict[str, Any]
    defaults: dict[str, Any]
    written: frozenset[str]
    ambient: Ambient
    fuses: bool
    copies: bool

    def schema(self) -> str:
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        parts: list[str] = []
        defaults = _defaults(self)
        for parameter, kind in zip(self.kernel.parts.parameters, self.types, strict=True):
            if not kind:
                continue
            if kind == CHANGING:
                kind = "Tensor"
            if parameter.name in self.written and kind.startswith("Tensor"):
                kind = kind.replace("Tensor", f"Tensor({next(letters)}!)")
            default = defaults.get(parameter.name, "")
            parts.append(f"{kind} {in_ascii(parameter.name)}{default}")
        made = self.returned.made
        returns = "Tensor" if made == 1 else f"({', '.join(['Tensor'] * made)})"
        return f"({', '.join(parts)}) -> {returns}"

    def make(self, name: str, schema: str, tags: Sequence[Any], decided: Any) -> Operator:
        """Defines the operator, all that torch asks, and derivatives (``decided``: ``Around``)."""
        namespace = namespace_of(self.namespace)
        name, family = namespace.free_name(name), Family(namespace)
        family.look_around = functools.partial(Around, self.kernel, self.constants, decided)
        if CHANGING in self.types or family.around.differs():  # what the host reads at each call
            family.tags = (torch.Tag.cudagraph_unsafe,)
        fake = self.implementation(fake_launchers(self.kernel, operator=True))
        run = self.implementation(None)
        code = self._boxed(name)
        if code is not None:
            run = code.taught(run)
        fake = without_data(_offering(self, fake, name), self.kernel)
        overload = family.define(name, schema, run, fake, *tags)
        rule: Rule | None = None
        writes = any(a.alias_info is not None for a in overload._schema.arguments)
        if writes or not _gives(overload):
            _without_derivative(self, family, overload, self._direct(code))
        else:
            rule = self._rule(name, family, code)
        family.portable[name] = functools.partial(self._boxed, name, frozen=True)
        if code is not None:
            code.attach(family, name)
        # The hashes of overload and packet are those of what ``attach`` puts there.
        flops.register(family, overload, self.kernel.span, functools.partial(_counted, self))
        _stays(overload)
        return Operator(overload, self.types, self.constants, rule, self)

    def _boxed(self, name: str, *, frozen: bool = False) -> BoxedKernel | None:
        """Its kernel in machine code, if there is one. ``frozen``: as a library has it."""
        if self.ambient or not all(self.types) or self.kernel.implementations is not None:
            return None
        return boxed_kernel(self.kernel, self.types, name, frozen=frozen)

    def _rule(self, name: str, family: Family, code: BoxedKernel | None) -> Rule:
        """Tells autograd how the operator ``name`` is differentiated."""
        kernel, returned = self.kernel, self.returned
        names = returned_names(kernel.parts, kernel.source)

        def run(launchers: Any, inputs: Sequence[Any], *, recording: bool = False) -> Any:
            return self.implementation(launchers, recording)(*inputs)

        def made(
            inputs: Sequence[Any], outs: Sequence[torch.Tensor] | None,
            counter: Counter | None = None,
        ) -> Any:  # fmt: skip
            if names is None or outs is None:
                launchers = None if counter is None else counter.launchers(kernel)
                return run(launchers, inputs, recording=True)
            fresh = [n for n, own in zip(names, returned.names, strict=True) if not own]
            known = dict(zip(fresh, outs or [None] * len(fresh), strict=True))
            (loop,) = kernel.launchers
            make = None if counter is None else counter.make(loop)
            return run((replaying(loop, known, make),), inputs, recording=True)

        schema = without_defaults(self.schema())[1:].partition(") ->")[0]
        reads = NeedsOutputs(kernel, run) if names is not None else lambda _: False
        constant = ConstantResults(kernel, run) if self.copies else lambda _: ()
        return register(name, schema, made, reads, family, kernel.span, self._direct(code),
                        functools.partial(_backward_of, code), functools.partial(_offering, self),
                        constant)  # fmt: skip

    def _direct(self, code: BoxedKernel | None) -> Callable[..., Any] | None:
        """What carries out a call that nothing watches: as ``implementation``, at once, and as the
        kernel itself does where a gradient is asked for; None where that would not do."""
        kernel, returned, types = self.kernel, self.returned, self.types
        parameters = kernel.parts.parameters
        made = returned.made
        if (
            kernel.implementations is not None  # which record no gradient
            or self.ambient or not all(types) or any("[" in t or t == CHANGING for t in types)
            or any(p.position not in _POSITIONAL for p in parameters)
            or made not in (0, len(returned.names))
            or (made and returned_types(kernel.function) is not None)
        ):  # fmt: skip
            return None
        host = kernel.unconverted
        tensors = [k for k, kind in enumerate(types) if kind.startswith("Tensor")]
        unwritten = [k for k in tensors if parameters[k].name not in self.written]
        names = [p.name for p in parameters]

        def direct(*passed: Any) -> Any:
            grads, tangents = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
            torch._C._set_grad_enabled(grads and torch._C._any_requires_grad(*passed))
            torch._C._set_fwd_grad_enabled(False)
            try:
                # torch passes on a None for any tensor.
                before = {k: passed[k]._version for k in unwritten if passed[k] is not None}
                out = host(*passed)
                changed = {k for k, version in before.items() if passed[k]._version != version}
                if changed:
                    self._check_written(names, passed, changed)
                if made == 1 and type(out) is torch.Tensor:
                    memory, given = out.untyped_storage()._cdata, [passed[k] for k in tensors]
                    if all(v is None or v.untyped_storage()._cdata != memory for v in given):
                        return out
                return list_made(out, returned, passed, kernel, False) if made else None
            except Exception as error:
                shorten(error)
                raise
            finally:
                torch._C._set_fwd_grad_enabled(tangents)
                torch._C._set_grad_enabled(grads)

        if code is not None and made and callable(kernel) and returned == Returned.tensors(made):
            code.recorded = kernel  # which returns what the operator does
        return direct if code is None else code.taught(direct)

    def implementation(self, launchers: Any, recording: bool = False) -> Callable[..., Any]:
        """What carries the kernel out: with ``launchers`` for its loops, if not its own.
        ``recording``: autograd is to see it, where it is on, and forward mode."""
        kernel, returned = self.kernel, self.returned
        types, constants, written = self.types, self.constants, self.written
        parameters = kernel.parts.parameters
        passed_on = [p.name for p, kind in zip(parameters, types, strict=True) if kind]
        unwritten = [k for k, n in enumerate(passed_on) if n not in written]
        host = kernel.unconverted
        if launchers is not None:
            host = functools.partial(kernel.parts.host, launchers)
        as_passed = all(types) and all(p.position in _POSITIONAL for p in parameters)

        changing = [k for k, kind in enumerate(filter(None, types)) if kind == CHANGING]
        reaching = reaches(kernel.function, constants.values())

        def call(passed: Sequence[Any]) -> Any:
            if changing:
                passed = [number_in(v) if k in changing else v for k, v in enumerate(passed)]
            if as_passed:
                return host(*passed)
            given = iter(passed)
            values = [next(given) if t else constants[p.name]
                      for p, t in zip(parameters, types, strict=True)]  # fmt: skip
            args, kwargs = as_call(parameters, values)
            return host(*args, **kwargs)

        def implementation(*passed: Any) -> Any:
            grad, tangents = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
            torch._C._set_grad_enabled(recording and grad)
            torch._C._set_fwd_grad_enabled(recording and tangents)
            before = [_version(passed[k]) for k in unwritten]
            uncounted = _is_excluded(_VERSIONS)  # compiled graphs do not count what is written
            _exclude(_VERSIONS, False)
            try:
                out = seen(call, passed, kernel.span, grad) if reaching else call(passed)
                if before != [_version(passed[k]) for k in unwritten]:
                    pairs = zip(unwritten, before, strict=True)
                    changed = {k for k, version in pairs if version != _version(passed[k])}
                    self._check_written(passed_on, passed, changed)
                followed = recording or launchers is not None
                return list_made(out, returned, passed, kernel, followed)
            except Exception as error:
                shorten(error)
                raise
            finally:
                _exclude(_VERSIONS, uncounted)
                torch._C._set_fwd_grad_enabled(tangents)
                torch._C._set_grad_enabled(grad)

        def cast(*passed: Any) -> Any:
            with under(self.ambient):
                return implementation(*passed)

        return cast if self.ambient else implementation

    def _check_written(self, names: list[str], passed: tuple[Any, ...], changed: set[int]) -> None:
        """Raises ``KernelValueError`` where one of the ``changed`` arguments shares no memory with
        those that are known to be written."""
        memory: set[int] = set()
        _add_storages([v for n, v in zip(names, passed, strict=True) if n in self.written], memory)
        for k in sorted(changed):
            own: set[int] = set()
            _add_storages([passed[k]], own)
            if own & memory:
                continue
            raise KernelValueError(
                f"`{names[k]}` is written, and the text of the kernel does not show it",
                self.kernel.span,
                help="torch.compile and other transforms must know before a call what it writes "
                f"to: write to `{names[k]}` by its name, or to a view that the kernel makes of it",
            )  # fmt: skip

    def autograd(
        self, overload: Any, direct: Callable[..., Any] | None
    ) -> Callable[..., Any]:  # fmt: skip
        names = [argument.name for argument in overload._schema.arguments]
        written = [k for k, a in enumerate(overload._schema.arguments)
                   if a.alias_info is not None and a.alias_info.is_write]  # fmt: skip
        span = self.kernel.span

        @user_frames
        def autograd(keyset: Any, *passed: Any) -> Any:
            recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*passed)
            if direct is not None and not recorded and is_plain(keyset):
                return direct(*passed)
            if has_dual(passed):
                dual = next(n for n, v in zip(names, passed, strict=True) if has_dual((v,)))
                raise GradientError(
                    f"`{dual}` has a tangent, and the kernel is called as an operator that writes "
                    "to its arguments", span,
                    help="call it outside of torch.compile, torch.func and dispatch modes, or "
                    "return new tensors",
                )  # fmt: skip
            wanting = ""
            if torch.is_grad_enabled():
                wanting = next((n for n, v in zip(names, passed, strict=True) if needs_grad(v)), "")
            if wanting and any(is_float(v) for k in written for v in items(passed[k])):
                raise gradient_error(wanting, span)
            with torch._C._AutoDispatchBelowAutograd():
                out = overload.redispatch(keyset & torch._C._after_autograd_keyset, *passed)
            if wanting and any(map(is_float, items(out))):
                raise gradient_error(wanting, span)
            return out

        return autograd


def _offering(
    form: OperatorForm, fake: Callable[..., Any], name: str, split: Callable[..., Any] | None = None
) -> Callable[..., Any]:  # fmt: skip
    """``fake``, which tells Inductor, where that is at work, what the operator ``name`` becomes:
    that of ``form``, or its backward, whose arguments ``split`` takes apart."""

    def recorded(launchers: Any, inputs: Sequence[Any]) -> Any:
        return form.implementation(launchers, recording=True)(*inputs)

    def offering(*args: Any) -> Any:
        if "torch._inductor.lowering" in sys.modules and form.fuses and not form.ambient:
            # Only where Inductor compiles.
            from weft.pytorch import fusible, fusible_backward, inductor

            overload = namespace_of(form.namespace).packets[name].default
            inductor.offer(overload, (
                fusible.recorder(form.kernel, form.implementation) if split is None
                else fusible_backward.recorder(form.kernel, recorded, split)
            ))  # fmt: skip
        return fake(*args)

    return offering


def _defaults(form: OperatorForm) -> dict[str, str]:
    """The defaults as schemas have them, behind an ``=``: those of the last parameters."""
    found: dict[str, str] = {}
    pairs = zip(form.kernel.parts.parameters, form.types, strict=True)
    for parameter, kind in reversed([(p, kind) for p, kind in pairs if kind]):
        text = _default(kind, form.defaults.get(parameter.name, EMPTY))
        if not text:
            break
        found[parameter.name] = text
    return found


def _default(kind: str, value: Any) -> str:
    """A default of this schema type behind an ``=``; "" where schemas cannot have it."""
    if value is EMPTY:
        return ""
    items = value if isinstance(value, list | tuple) else [value]
    floats = kind.startswith("float") and value is not None
    texts = [repr(float(v) if floats else v) for v in items]
    text = f"=[{', '.join(texts)}]" if items is value else f"={texts[0]}"
    try:
        (argument,) = torch._C.parse_schema(f"f({kind} x{text}) -> ()").arguments
    except RuntimeError:  # of infinity, say
        return ""
    read = argument.default_value
    return text if read == (list(items) if items is value else value) else ""


def _without_derivative(
    form: OperatorForm, family: Family, overload: Any, direct: Callable[..., Any] | None = None,
    made: Made | None = None,
) -> None:  # fmt: skip
    """Tells autograd and ``vmap`` of an operator that writes to arguments or gives nothing."""
    family.differentiate(overload._schema.name.rpartition(":")[2], form.autograd(overload, direct))
    run = form.implementation(None)

    def derive(overload: Any, made: Made) -> None:
        _without_derivative(form, family, overload, made=made)
        _stays(overload)

    Samples(family, overload, made or (lambda inputs, *_: run(*inputs)), derive)


def _stays(overload: Any) -> None:
    """Has graphs keep the calls of an operator that asserts or prints, and nothing else."""
    if not overload._schema.returns and not overload._schema.is_mutable:
        has_side_effect(overload)


def _backward_of(code: BoxedKernel | None) -> BoxedKernel | None:
    return None if code is None else BoxedBackward.of(code, _form_of_backward)


def _form_of_backward(kernel: BoxedKernel, passed: Sequence[Any]) -> Found:
    from weft.pytorch import boxed_backward  # gradients: where one was asked for

    return boxed_backward.found(kernel, passed)


def _gives(overload: Any) -> bool:
    """Whether there is something to differentiate."""
    return len(overload._schema.returns) > 0 and any(
        "Tensor" in str(a.type) for a in overload._schema.arguments
    )


def _version(value: Any) -> Any:
    """How often ``value``, a tensor or a list of them, was written to."""
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    return [_version(v) for v in value] if isinstance(value, list | tuple) else None


def _counted(form: OperatorForm, counter: Counter, inputs: Sequence[Any]) -> None:
    """A call whose operations are counted."""
    with counter.watching():
        form.implementation(counter.launchers(form.kernel))(*inputs)


def needs_grad(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(needs_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def list_made(
    result: Any, returned: Returned, passed: tuple[Any, ...], kernel: KernelLike, followed: bool
) -> Any:
    """The tensors among ``result`` that the kernel made, as the operator returns them.

    An operator must not return memory that it was given: views of arguments are copied, which is
    said where the kernel is ``followed``: for a graph, or by a transform.
    """
    if returned.made == 0:
        return None
    names, items = returned.names, tensors_of(result, returned.form)
    if items is None:
        raise _no_result(result, kernel)
    wanted = returned_types(kernel.function)
    types = list(wanted) if isinstance(wanted, tuple) else [wanted] * len(names)
    taken: set[int] = set()
    _add_storages(passed, taken)
    made = []
    for item, name, type_ in zip(items, names, types, strict=True):
        if name:
            continue
        if isinstance(item, bool | int | float | complex):
            item = tensor_of(item)
        if isinstance(type_, DType) and isinstance(item, torch.Tensor):
            item = item.to(type_.torch)
        if not isinstance(item, torch.Tensor):
            raise _no_result(item, kernel)
        if item.is_conj():  # fake tensors do not know of it
            item = item.resolve_conj()
        if storage(item) in taken:
            item = item.clone()
            if followed:
                warn(
                    OverlapWarning, "it returns memory of an argument, or one memory twice: as an "
                    "operator, a copy", kernel.span, "what is written to the copy does not reach "
                    "the argument: make the view outside of the kernel, or return x.clone()",
                    kernel.source.warned,
                )  # fmt: skip
        if len(names) > 1:
            taken.add(storage(item))
        made.append(item)
    return made[0] if len(made) == 1 else tuple(made)


def _no_result(value: Any, kernel: KernelLike) -> KernelTypeError:
    """The error about a ``value`` that an operator does not return, where its text says nothing of
    it (see ``frontend/returns.py``)."""
    return KernelTypeError(
        f"`{kernel.__name__}` returns {type(value).__name__}", kernel.span,
        help="as an operator (under torch.compile, say) it can return tensors, and what collects "
        "them where the `return` shows it: `return a, b`, `return [a, b]`, `return {'a': a}`, "
        "`return State(a, b)` of a named tuple or a dataclass",
    )  # fmt: skip


def _add_storages(values: Sequence[Any], taken: set[int]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            taken.add(storage(value))
        elif isinstance(value, list | tuple):
            _add_storages(value, taken)
