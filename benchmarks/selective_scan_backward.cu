// The gradient of the selective scan by hand: a thread for each (b, d), with its state of N numbers
// in registers. States are kept in `kept` every C turns; going backwards, C turns are carried out
// again in registers, and what the next C load is loaded meanwhile: a thread's own numbers into
// registers, rows of B and C, which all threads of a block read, into shared memory. Lanes add up
// what they have for dB and dC, and then add it to memory; each step of the sum halves what a lane
// has (as a loop over the steps, these numbers are in local memory, and all takes twice as long).
// L is a multiple of C, D one of THREADS; dA, dB and dC are zeros at first.
#define N 16
#define C 4

__device__ void step(float* s, const float* decay, float x, const float* row)
{
#pragma unroll
    for (int n = 0; n < N; n++) s[n] = decay[n] * s[n] + x * row[n];
}

template <int m> __device__ void halved(float* v, int lane)
{
    bool up = lane & m;
#pragma unroll
    for (int n = 0; n < m; n++) {
        float send = up ? v[n] : v[n + m], keep = up ? v[n + m] : v[n];
        v[n] = keep + __shfl_xor_sync(0xffffffffu, send, m);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) selective_scan_backward(
    const float* __restrict__ u, const float* __restrict__ dt, const float* __restrict__ A,
    const float* __restrict__ B, const float* __restrict__ Cm, const float* __restrict__ gy,
    float* __restrict__ du, float* __restrict__ ddt, float* __restrict__ dA,
    float* __restrict__ dB, float* __restrict__ dC, float4* __restrict__ kept, int L, int D)
{
    __shared__ float4 rows[2][2][C][N / 4];
    const int words = C * N / 4, t = threadIdx.x, lane = t & 31, chunks = L / C;
    int d = blockIdx.x * THREADS + t, b = blockIdx.y;
    size_t first = (size_t)b * L * D + d, all = (size_t)gridDim.y * D, me = (size_t)b * D + d;
    const float4* Bp = (const float4*)(B + (size_t)b * L * N);
    const float4* Cp = (const float4*)(Cm + (size_t)b * L * N);
    float a[N], s[N], decay[N], un[C], dn[C], gn[C];
#pragma unroll
    for (int n = 0; n < N; n++) { a[n] = A[d * N + n]; s[n] = 0.0f; }

    // Forwards.
    if (t < words) ((float4*)rows[0][0])[t] = Bp[t];
#pragma unroll
    for (int k = 0; k < C; k++) {
        un[k] = u[first + (size_t)k * D]; dn[k] = dt[first + (size_t)k * D];
    }
    for (int q = 0; q < chunks; q++) {
        __syncthreads();
        int at = q & 1, next = q + 1 < chunks ? (q + 1) * C : 0;
        float uk[C], dk[C];
#pragma unroll
        for (int k = 0; k < C; k++) {
            uk[k] = un[k]; dk[k] = dn[k];
            un[k] = u[first + (size_t)(next + k) * D]; dn[k] = dt[first + (size_t)(next + k) * D];
        }
        float4 row;
        if (t < words) row = Bp[next * (N / 4) + t];
#pragma unroll
        for (int n = 0; n < N / 4; n++)
            kept[((size_t)q * (N / 4) + n) * all + me] =
                make_float4(s[4 * n], s[4 * n + 1], s[4 * n + 2], s[4 * n + 3]);
#pragma unroll
        for (int k = 0; k < C; k++) {
#pragma unroll
            for (int n = 0; n < N; n++) decay[n] = expf(dk[k] * a[n]);
            step(s, decay, dk[k] * uk[k], (const float*)rows[at][0][k]);
        }
        if (t < words) ((float4*)rows[at ^ 1][0])[t] = row;
    }

    // Backwards.
    __syncthreads();
    float g[N], da[N];
#pragma unroll
    for (int n = 0; n < N; n++) { g[n] = 0.0f; da[n] = 0.0f; }
    int last = (chunks - 1) * C;
    if (t < words) ((float4*)rows[0][0])[t] = Bp[last * (N / 4) + t];
    else if (t < 2 * words) ((float4*)rows[0][1])[t - words] = Cp[last * (N / 4) + t - words];
#pragma unroll
    for (int k = 0; k < C; k++) {
        size_t i = first + (size_t)(last + k) * D;
        un[k] = u[i]; dn[k] = dt[i]; gn[k] = gy[i];
    }
    float4 sn[N / 4];
#pragma unroll
    for (int n = 0; n < N / 4; n++) sn[n] = kept[((size_t)(chunks - 1) * (N / 4) + n) * all + me];
    for (int q = chunks - 1; q >= 0; q--) {
        __syncthreads();
        int at = (chunks - 1 - q) & 1, next = q > 0 ? (q - 1) * C : 0;
        float uk[C], dk[C], gk[C], before[C + 1][N], decays[C][N];
#pragma unroll
        for (int n = 0; n < N / 4; n++) {
            before[0][4 * n] = sn[n].x; before[0][4 * n + 1] = sn[n].y;
            before[0][4 * n + 2] = sn[n].z; before[0][4 * n + 3] = sn[n].w;
            sn[n] = kept[((size_t)(next / C) * (N / 4) + n) * all + me];
        }
#pragma unroll
        for (int k = 0; k < C; k++) {
            size_t i = first + (size_t)(next + k) * D;
            uk[k] = un[k]; dk[k] = dn[k]; gk[k] = gn[k];
            un[k] = u[i]; dn[k] = dt[i]; gn[k] = gy[i];
        }
        float4 row;
        if (t < words) row = Bp[next * (N / 4) + t];
        else if (t < 2 * words) row = Cp[next * (N / 4) + t - words];
#pragma unroll
        for (int k = 0; k < C; k++) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                decays[k][n] = expf(dk[k] * a[n]);
                before[k + 1][n] = before[k][n];
            }
            step(before[k + 1], decays[k], dk[k] * uk[k], (const float*)rows[at][0][k]);
        }
#pragma unroll
        for (int k = C - 1; k >= 0; k--) {
            const float* Bs = (const float*)rows[at][0][k];
            const float* Cs = (const float*)rows[at][1][k];
            float x = dk[k] * uk[k], dx = 0.0f, de = 0.0f, v[2 * N];
#pragma unroll
            for (int n = 0; n < N; n++) {
                g[n] += gk[k] * Cs[n];
                v[n] = g[n] * x;
                v[N + n] = gk[k] * before[k + 1][n];
                dx += g[n] * Bs[n];
                g[n] *= decays[k][n];
                float p = g[n] * before[k][n];
                de += p * a[n];
                da[n] += p * dk[k];
            }
            size_t turn = (size_t)q * C + k;
            du[first + turn * D] = dx * dk[k];
            ddt[first + turn * D] = dx * uk[k] + de;
            halved<16>(v, lane); halved<8>(v, lane); halved<4>(v, lane);
            halved<2>(v, lane); halved<1>(v, lane);
            atomicAdd((lane < N ? dB : dC) + ((size_t)b * L + turn) * N + (lane & (N - 1)), v[0]);
        }
        if (t < words) ((float4*)rows[at ^ 1][0])[t] = row;
        else if (t < 2 * words) ((float4*)rows[at ^ 1][1])[t - words] = row;
    }
#pragma unroll
    for (int n = 0; n < N; n++) atomicAdd(dA + d * N + n, da[n]);
}
