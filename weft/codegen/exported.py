"""What stands in a shared library around the kernels of operators (``boxed.py``), as C: their
registration, the records that they read, errors, and what they ask of CUDA's driver."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from weft.codegen.boxed_forms import CPU, CUDA, Form, NumberForm, TensorForm
from weft.codegen.interrupt import FUNCTIONS
from weft.values import frozen


@frozen
class Ptx:
    """Code for GPUs: its text, and the function that a loop launches."""

    text: str
    function: str


@frozen
class Exported:
    """An operator of a library: its ``name`` in errors, its namespace, its schemas (that of the
    name with a hash first, then that of the plain one), the names of its arguments; its forms, and
    for each the loops' symbols or code. ``entry``: the name of its function of C, if it has one.
    ``frozen``: a hash of the values from around the kernel that the code has, if it has any."""

    name: str
    namespace: str
    schemas: tuple[str, ...]
    arguments: tuple[str, ...]
    forms: tuple[Form, ...]
    codes: tuple[tuple[str | Ptx, ...], ...]
    entry: str = ""
    frozen: str = ""

    @property
    def keys(self) -> list[str]:
        """The dispatch keys of its devices."""
        return sorted({_KEYS[form.device[0]] for form in self.forms})


_KEYS = {CPU: "CPU", CUDA: "CUDA"}
CARRIED = "weft_carried_out"  # and the number of the operator: the symbol of its machine code


def text(
    operators: Sequence[Exported], dtypes: Mapping[int, str], processor: Sequence[str], made: str,
    torch: tuple[int, int],
) -> str:  # fmt: skip
    """The C of a library. ``dtypes``: names, by torch's numbers; ``processor``: instruction sets
    that the code needs, by the compiler's names; ``made``: what the code was made for, in words;
    ``torch``: the release."""
    tests = " && ".join(f"__builtin_cpu_supports({json.dumps(n)})" for n in processor)
    asked = f"__builtin_cpu_init();\n  if (!({tests}))" if tests else "if (0)"
    stubs = "".join(f"uint64_t {name}(void) {{ return 0; }}\n" for name in FUNCTIONS)
    names = "".join(f"    case {n}: return {json.dumps(name)};\n" for n, name in dtypes.items())
    release = ".".join(map(str, torch))
    parts = [
        _COMMON.replace("@STUBS@", stubs).replace("@DTYPES@", names).replace("@SUPPORTED@", asked)
        .replace("@MADE@", made).replace("@RELEASE@", release)
        .replace("@NUMBER@", str(torch[0] << 8 | torch[1]))
    ]  # fmt: skip
    on_gpu = any("CUDA" in operator.keys for operator in operators)
    parts.append(_DRIVER if on_gpu else "")
    body: list[str] = []
    for number, operator in enumerate(operators):
        parts.append(_operator(number, operator))
        given = [json.dumps(operator.namespace), _array([json.dumps(k) for k in operator.keys]),
                 f"below_{number}, above_{number}"]  # fmt: skip
        calls = [f"define({', '.join([given[0], json.dumps(schema), *given[1:]])})"
                 for schema in operator.schemas]  # fmt: skip
        own = operator.schemas[0].partition("(")[0]
        marks = ", ".join(json.dumps(f"{own}_frozen{n}() -> ()") for n in ("", operator.frozen))
        body += [f"  tell({given[0]}, {marks});"] * bool(operator.frozen)
        body.append(f"  made = {calls[0]};")
        for schema, call in zip(operator.schemas[1:], calls[1:], strict=True):
            body.append(f'  if (!{call} && made) unload({given[0]}, {json.dumps(schema)}, "");')
    parts.append(
        "__attribute__((constructor)) static void start(void) {\n  _Bool made;"
        "\n  pthread_atfork(0, 0, alone);\n"
    )
    return "\n".join([*parts, *body, "}\n"])


def _array(items: Sequence[str]) -> str:
    return f"(const char *[]){{{', '.join(items)}, 0}}"


def _operator(number: int, operator: Exported) -> str:
    lines: list[str] = []
    words = ["0", "0"]
    for form, codes in zip(operator.forms, operator.codes, strict=True):
        words.append("0")  # values that were compiled in stay what they were
        for code in codes:
            if isinstance(code, Ptx):
                name = f"code_{number}_{len(words)}"
                lines.append(f"static struct code {name} = {{{json.dumps(code.text)}, "
                             f"{json.dumps(code.function)}, {{0}}}};")  # fmt: skip
                words.append(f"&{name}")
            else:
                lines.append(f"extern void {code}(void *);")
                words.append(f"(void *){code}")
        assert len(codes) == len(form.runs)
    lines.append(f"static void *record_{number}[] = {{{', '.join(words)}}};")
    rows = [row for form in operator.forms for row in _kinds(form)]
    names = ", ".join(map(json.dumps, operator.arguments))
    lines.append(f"static const struct kind kinds_{number}[] = {{{', '.join(rows)}}};")
    lines.append(f"static const char *const names_{number}[] = {{{names or '0'}}};")
    lines.append(
        f"static const struct operator operator_{number} = {{{json.dumps(operator.name)}, "
        f"{len(operator.arguments)}, {len(operator.forms)}, names_{number}, kinds_{number}}};"
    )
    symbol = f"{CARRIED}_{number}"
    lines.append(f"extern _Bool {symbol}(uint64_t *, void *, _Bool);")
    lines.append(f"""static const char *run_{number}(uint64_t *stack, _Bool above) {{
  const char *why = unready();
  if (!why && {symbol}(stack, record_{number}, above)) return 0;
  return explained(&operator_{number}, stack, above, why);
}}
static void below_{number}(uint64_t *stack, uint64_t given, uint64_t wanted) {{
  fail(run_{number}(stack, 0));
}}
static void above_{number}(uint64_t *stack, uint64_t given, uint64_t wanted) {{
  fail(run_{number}(stack, 1));
}}""")
    if operator.entry:
        lines.append(f"const char *{operator.entry}(uint64_t *stack) {{ "
                     f"return run_{number}(stack, 1); }}")  # fmt: skip
    return "\n".join(lines) + "\n"


def _kinds(form: Form) -> list[str]:
    """What is known of each argument, where none is a list of tensors."""
    rows: list[str] = []
    items = iter(form.arguments)
    for length in form.lists:
        if length is not None:
            for _ in range(length[0]):
                next(items)
            rows.append(f"{{2, 0, 0, {length[0]}, 0, 0}}")
            continue
        match next(items):
            case TensorForm() as tensor:
                rows.append(f"{{1, {form.device[0]}, {tensor.dtype}, {tensor.rank}, 0, 0}}")
            case NumberForm(int(low), int() | None as high):
                rows.append(f"{{0, 0, 0, 0, {_number(low)}, {_number(high or 0)}}}")
            case NumberForm():
                rows.append("{0, 0, 0, 0, INT64_MIN, INT64_MAX}")
    return rows or ["{0}"]


def _number(value: int | None) -> str:
    return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})"


_COMMON = r"""#include <stdint.h>
#include <stdio.h>

typedef int32_t error;
extern error aoti_torch_library_init_fragment(const char *, const char *, uint32_t, void **);
extern error aoti_torch_library_init_impl(const char *, const char *, const char *, uint32_t,
                                          void **);
extern error aoti_torch_library_def(void *, const char *);
extern error aoti_torch_library_impl(void *, const char *,
                                     void (*)(uint64_t *, uint64_t, uint64_t));
extern error aoti_torch_call_dispatcher(const char *, const char *, uint64_t *);
extern error aoti_torch_new_tensor_handle(void *, void **);
extern error aoti_torch_delete_tensor_object(void *);
extern error aoti_torch_get_device_type(void *, int32_t *);
extern error aoti_torch_get_dtype(void *, int32_t *);
extern error aoti_torch_get_dim(void *, int64_t *);
extern error torch_delete_list(void *) __attribute__((weak));
extern error torch_list_size(void *, uint64_t *) __attribute__((weak));
extern void omp_set_num_threads(int) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void));
extern uint64_t aoti_torch_abi_version(void) __attribute__((weak));
extern _Bool aoti_torch_grad_mode_is_enabled(void);
extern void aoti_torch_check(_Bool, const char *, const char *, uint32_t, const char *);
extern _Bool _ZNK3c1010TensorImpl13requires_gradEv(void *);

/* Interrupts are Python's: nobody asks for them here. */
@STUBS@
static _Thread_local char said[1024];
static _Thread_local const char *driver;  /* what went wrong on a GPU */

struct kind { int what, device, dtype, rank; int64_t low, high; };  /* 1: a tensor, 2: a list */
struct operator { const char *name; int arguments, forms; const char *const *names;
                  const struct kind *kinds; };

static const char *dtype_name(int dtype) {
  switch (dtype) {
@DTYPES@    default: return "of another dtype";
  }
}

static const char *device_name(int device) {
  return device == 0 ? "CPU" : device == 1 ? "CUDA" : "another device";
}

static const char *unready(void) {
  @SUPPORTED@
    return "the library was made for @MADE@, which this processor is not: export it with target=";
  if (aoti_torch_abi_version && aoti_torch_abi_version() >> 48 != @NUMBER@)
    return "the library was made with PyTorch @RELEASE@, and this is another release";
  return 0;
}

static int field(const struct kind *kind, int which) {
  return which == 0 ? kind->device : which == 1 ? kind->dtype : kind->rank;
}

/* What is wrong with the arguments, which are gone then. */
static const char *explained(const struct operator *o, uint64_t *stack, _Bool above,
                             const char *why) {
  int told[64][3], n = o->arguments < 64 ? o->arguments : 64, length = 0, written = 0;
  const char *wanted = 0;
  for (int k = 0; k < n; k++) {
    if (o->kinds[k].what != 1) continue;
    int64_t rank = -1;
    void *tensor = (void *)stack[k];
    aoti_torch_get_device_type(tensor, &told[k][0]);
    aoti_torch_get_dtype(tensor, &told[k][1]);
    aoti_torch_get_dim(tensor, &rank);
    told[k][2] = (int)rank;
    if (above && !wanted && aoti_torch_grad_mode_is_enabled() &&
        _ZNK3c1010TensorImpl13requires_gradEv(*(void **)tensor))
      wanted = o->names[k];
  }
  length = snprintf(said, sizeof said, "%s: ", o->name);
  if (why) written = snprintf(said + length, sizeof said - length, "%s", why);
  for (int which = 0; which < 3 && !written; which++)
    for (int k = 0; k < n && !written; k++) {
      if (o->kinds[k].what != 1) continue;
      _Bool fits = 0;
      for (int f = 0; f < o->forms; f++)
        fits |= field(o->kinds + f * o->arguments + k, which) == told[k][which];
      if (fits) continue;
      char had[256];
      int end = 0;
      for (int f = 0; f < o->forms && end < 200; f++) {
        int value = field(o->kinds + f * o->arguments + k, which), seen = 0;
        for (int g = 0; g < f; g++) seen |= field(o->kinds + g * o->arguments + k, which) == value;
        if (seen) continue;
        end += snprintf(had + end, sizeof had - end, end ? ", %s" : "%s",
                        which == 0 ? device_name(value) : which == 1 ? dtype_name(value) : "");
        if (which == 2) end += snprintf(had + end, sizeof had - end, "%d", value);
      }
      char found[32];
      snprintf(found, sizeof found, "%d", told[k][2]);
      written = snprintf(said + length, sizeof said - length,
          which == 0 ? "`%s` is on %s, and the library has code for %s"
          : which == 1 ? "`%s` is %s, and the library has code for %s"
          : "`%s` has %s dimensions, and the library has code for %s", o->names[k],
          which == 0 ? device_name(told[k][0]) : which == 1 ? dtype_name(told[k][1]) : found, had);
    }
  if (!written && wanted)
    written = snprintf(said + length, sizeof said - length, "`%s` requires a gradient, and the "
        "library has none: call it under torch.no_grad()", wanted);
  for (int k = 0; k < n && !written; k++) {
    uint64_t items = 0;
    if (o->kinds[k].what != 2 || !torch_list_size) continue;
    torch_list_size((void *)stack[k], &items);
    _Bool fits = 0;
    for (int f = 0; f < o->forms; f++)
      fits |= o->kinds[f * o->arguments + k].rank == (int64_t)items;
    if (!fits)
      written = snprintf(said + length, sizeof said - length, "`%s` has %llu items, and the "
          "library has code for %d", o->names[k], (unsigned long long)items, o->kinds[k].rank);
  }
  for (int k = 0; k < n && !written; k++) {
    if (o->kinds[k].what) continue;
    _Bool fits = 0;
    for (int f = 0; f < o->forms; f++) {
      const struct kind *kind = o->kinds + f * o->arguments + k;
      fits |= kind->low <= (int64_t)stack[k] && (int64_t)stack[k] <= kind->high;
    }
    if (!fits)
      written = snprintf(said + length, sizeof said - length, "`%s` is %lld, and the library has "
          "code for %lld to %lld", o->names[k], (long long)stack[k],
          (long long)o->kinds[k].low, (long long)o->kinds[k].high);
  }
  _Bool together = 0;
  for (int f = 0; f < o->forms; f++) {
    _Bool all = 1;
    for (int k = 0; k < n; k++)
      for (int which = 0; which < 3 && o->kinds[k].what == 1; which++)
        all &= field(o->kinds + f * o->arguments + k, which) == told[k][which];
    together |= all;
  }
  if (!written && !together)
    written = snprintf(said + length, sizeof said - length, "the library has code for each of the "
        "arguments' dtypes and dimensions, but not together: they are those of no example");
  if (!written && driver) written = snprintf(said + length, sizeof said - length, "%s", driver);
  if (!written)
    snprintf(said + length, sizeof said - length, "an argument that is written shares memory with "
        "another, has one place for two indices or is an inference tensor, a tensor is a view "
        "without memory of its own or is on a device that is not the current one, a size that is "
        "computed is below zero, a divisor not above it, or a mode, a transform or a tangent is "
        "there");
  driver = 0;
  for (int k = 0; k < n; k++) {
    if (o->kinds[k].what == 1) aoti_torch_delete_tensor_object((void *)stack[k]);
    if (o->kinds[k].what == 2 && torch_delete_list) torch_delete_list((void *)stack[k]);
  }
  return said;
}

/* In a forked child the threads of OpenMP's pool are gone: waiting for them would have no end. */
static void alone(void) {
  if (omp_set_num_threads) omp_set_num_threads(1);
}

static void fail(const char *why) {
  if (why) aoti_torch_check(0, "weft", "weft", 0, why);
}

error weft_like(void *tensor, void **made) {
  uint64_t stack[6] = {0};
  error failed = aoti_torch_new_tensor_handle(tensor, (void **)stack);
  if (!failed) failed = aoti_torch_call_dispatcher("aten::empty_like", "", stack);
  *made = (void *)stack[0];
  return failed;
}

static _Bool declare(const char *space, const char *schema, void **handle) {
  return !aoti_torch_library_init_fragment(space, "weft", 0, handle) &&
         !aoti_torch_library_def(*handle, schema);
}

/* dlopen has no way to give an error but to end the process. */
static void unload(const char *space, const char *schema, const char *which) {
  snprintf(said, sizeof said, "the process has another operator %s::%.*s%s", space,
           (int)__builtin_strcspn(schema, "("), schema, which);
  fail(said);
}

/* Operators that are never called tell what values from around the kernel a library has. */
static void tell(const char *space, const char *any, const char *these) {
  void *handle;
  if (!declare(space, any, &handle) & declare(space, these, &handle))
    unload(space, any, ", with other values from around the kernel");
}

/* Makes an operator of its schema. The name with a hash says what it does: where it is there, it is
   the same. Under the plain name it may be another one, which nobody must call for this one. */
static _Bool define(const char *space, const char *schema, const char **keys,
                    void (*below)(uint64_t *, uint64_t, uint64_t),
                    void (*above)(uint64_t *, uint64_t, uint64_t)) {
  void *handle;
  char name[512], autograd[32];
  snprintf(name, sizeof name, "%.*s", (int)__builtin_strcspn(schema, "("), schema);
  if (!declare(space, schema, &handle)) return 0;
  for (; *keys; keys++) {
    snprintf(autograd, sizeof autograd, "Autograd%s", *keys);
    if (!aoti_torch_library_init_impl(space, *keys, "weft", 0, &handle))
      aoti_torch_library_impl(handle, name, below);
    if (!aoti_torch_library_init_impl(space, autograd, "weft", 0, &handle))
      aoti_torch_library_impl(handle, name, above);
  }
  return 1;
}
"""

_DRIVER = r"""#include <dlfcn.h>

/* The driver and torch's part for CUDA are there where tensors on a GPU are. */
struct code { const char *ptx, *function; void *loaded[64]; };

static void *of(const char *library, const char *name) {
  void *there = dlopen(library, RTLD_LAZY);
  void *found = there ? dlsym(there, name) : 0;
  if (!found) driver = "there is no CUDA in this process";
  return found;
}

static error refused(error code) {
  static _Thread_local char text[160];
  error (*words)(error, const char **) = of("libcuda.so.1", "cuGetErrorString");
  const char *found = "?";
  if (code && words) {
    words(code, &found);
    snprintf(text, sizeof text, "CUDA's driver refuses: %s", found);
    driver = text;
  }
  return code;
}

error cuCtxGetDevice(int32_t *device) {
  static error (*ask)(int32_t *);
  if (!ask) ask = of("libcuda.so.1", "cuCtxGetDevice");
  return ask ? refused(ask(device)) : -1;
}

error cuLaunchKernelEx(void *config, void *function, void *arguments, void *extra) {
  static error (*launch)(void *, void *, void *, void *);
  if (!launch) launch = of("libcuda.so.1", "cuLaunchKernelEx");
  return launch ? refused(launch(config, function, arguments, extra)) : -1;
}

error aoti_torch_get_current_cuda_stream(int32_t device, void **stream) {
  static error (*ask)(int32_t, void **);
  if (!ask) ask = of("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  return ask ? ask(device, stream) : -1;
}

void *weft_loaded(struct code *code, int32_t device) {
  if (device < 0 || device > 63) return 0;
  void *function = __atomic_load_n(&code->loaded[device], __ATOMIC_ACQUIRE), *module = 0;
  if (function) return function;
  error (*load)(void **, const void *) = of("libcuda.so.1", "cuModuleLoadData");
  error (*get)(void **, void *, const char *) = of("libcuda.so.1", "cuModuleGetFunction");
  if (!load || !get || refused(load(&module, code->ptx))) return 0;
  if (refused(get(&function, module, code->function))) return 0;
  __atomic_store_n(&code->loaded[device], function, __ATOMIC_RELEASE);
  return function;
}
"""
