"""What Taichi has and weft has not, by its name there: (what it is, what to write instead). Names
that tell two meanings apart by their module (``ti.linalg.SparseSolver``) stand without it."""

from __future__ import annotations

PAGE = "docs/port-taichi.md"

_ROWS: tuple[tuple[str, str, str], ...] = (
    ("activate deactivate deactivate_all_snodes is_active append length rescale_index get_addr "
     "SNode BitpackedFields no_activate snode",
     "sparse layouts", "use dense fields, and keep the indices of what is active in a tensor"),
    ("Mesh MeshInstance MeshQuery mesh_local mesh_patch_idx TriMesh TetMesh",
     "meshes", "keep neighbours in tensors of integers"),
    ("simt block grid subgroup warp global_thread_idx",
     "threads by name", "write the loop; docs/schedules.md says how it is told to run"),
    ("block_local cache_read_only assume_in_range",
     "such hints for caches", "leave it out; docs/schedules.md has what a schedule can say"),
    ("profiler print_kernel_profiler_info print_memory_profiler_info print_scoped_profiler_info "
     "query_kernel_profiler_info clear_kernel_profiler_info clear_scoped_profiler_info "
     "get_kernel_profiler_total_time set_kernel_profiler_metrics set_kernel_profiler_toolkit "
     "collect_kernel_profiler_metrics get_predefined_cupti_metrics CuptiMetric",
     "profiler of this name", "use weft.profile(...) or torch.profiler (docs/profiling.md)"),
    ("AutodiffMode SNodeGradType",
     "derivatives of that kind", "use weft.ad.Tape, weft.ad.FwdMode or torch.autograd.grad"),
    ("aot graph GraphBuilder Graph Module DeviceCapability",
     "such graphs and modules", "export the kernel (docs/shipping.md), or capture a CUDA graph"),
    ("GUI ui imread imwrite imresize imshow imdisplay rgb_to_hex hex_to_rgb VideoManager",
     "GUI and no images", "show or write the tensor with another library"),
    ("Texture texture rw_texture Format", "textures", "read a tensor at computed subscripts"),
    ("quant fixed quant_array BitpackedFields", "numbers of chosen bits",
     "pack them into integers by shifts"),
    ("SparseMatrixBuilder SparseMatrix SparseSolver SparseCG sparse_matrix_builder MatrixFreeCG "
     "MatrixFreeBICGSTAB LinearOperator", "sparse matrices", "use torch.sparse in the host part"),
    ("rand", "function of that name", "write weft.random(dtype), uniform in [0, 1)"),
    ("pyfunc", "functions of that kind", "write @weft.func"),
    ("reset", "state to reset", "leave it out"),
    ("amdgpu gles dx11 dx12 x86_64", "back end of that name",
     "leave arch= out: a kernel runs where its tensors are"),
    ("Ndarray ScalarNdarray VectorNdarray MatrixNdarray ScalarField MatrixField", "class of arrays",
     "fields and ndarrays are torch.Tensors"),
)  # fmt: skip
ABSENT = {name: (what, help) for names, what, help in _ROWS for name in names.split()}


def reason(name: str) -> str:
    """Why ``weft.name`` is not there; "" of a name that Taichi has not."""
    if name not in ABSENT:
        return ""
    what, help = ABSENT[name]
    return f"weft has no {what}: `{name}`; {help}; {PAGE} says what there is"
