// What a person would write by hand for the rows of cpu_rows.py: OpenMP, vectors of 16 floats.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <vector>

typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int64_t n64;

static inline v16 at(const float *p) { return *(const v16 *)p; }
static inline void put(float *p, v16 v) { *(v16 *)p = v; }
static inline v16 splat(float s) { return v16{} + s; }

extern "C" {

// out[b, c, t] = eps + sum_u<=t w[c, T - 1 - t + u] k[b, c, u]; T a multiple of 64, B of 4.
// The sum over d = t - u: w[T - 1 - d] is broadcast... lanes are neighbouring t, read from k.
void conv(const float *w, const float *k, float eps, float *out, n64 B, n64 C, n64 T) {
#pragma omp parallel for collapse(2) schedule(dynamic, 8)
  for (n64 c = 0; c < C; c++)
    for (n64 b0 = 0; b0 < B; b0 += 4) {
      std::vector<float> row(4 * (T + 64), 0.f); // zeros in front of each row of k
      for (int b = 0; b < 4; b++)
        memcpy(&row[b * (T + 64) + 64], k + ((b0 + b) * C + c) * T, T * 4);
      for (n64 t = 0; t < T; t += 64) {
        v16 s[4][4];
        for (auto &x : s) for (auto &y : x) y = splat(eps);
        for (n64 d = 0; d < std::min(t + 64, T); d++) {
          v16 f = splat(w[c * T + T - 1 - d]);
          for (int b = 0; b < 4; b++) {
            const float *from = &row[b * (T + 64) + 64] + t - d;
            for (int m = 0; m < 4; m++) s[b][m] += f * at(from + 16 * m);
          }
        }
        for (int b = 0; b < 4; b++)
          for (int m = 0; m < 4; m++) put(out + ((b0 + b) * C + c) * T + t + 16 * m, s[b][m]);
      }
    }
}

// gk[b, c, u] = sum_d g[b, c, u + d] w[c, T - 1 - d]; gw[c, T - 1 - d] = sum_b,u g[b, c, u + d] k[b, c, u]
void conv_backward(const float *w, const float *k, const float *g, float *gw, float *gk, n64 B,
                   n64 C, n64 T) {
#pragma omp parallel for schedule(dynamic, 4)
  for (n64 c = 0; c < C; c++) {
    n64 L = T + 128;
    std::vector<float> rows(B * L, 0.f), sums(T); // zeros behind each row of g
    for (n64 b = 0; b < B; b++) memcpy(&rows[b * L], g + (b * C + c) * T, T * 4);
    for (n64 b0 = 0; b0 < B; b0 += 4)
      for (n64 u = 0; u < T; u += 64) {
        v16 s[4][4] = {};
        for (n64 d = 0; d < T - u; d++) {
          v16 f = splat(w[c * T + T - 1 - d]);
          for (int b = 0; b < 4; b++)
            for (int m = 0; m < 4; m++) s[b][m] += f * at(&rows[(b0 + b) * L + u + d + 16 * m]);
        }
        for (int b = 0; b < 4; b++)
          for (int m = 0; m < 4; m++) put(gk + ((b0 + b) * C + c) * T + u + 16 * m, s[b][m]);
      }
    for (n64 d = 0; d < T; d += 64) {
      v16 s[4][4] = {};
      for (n64 b = 0; b < B; b++) {
        const float *x = k + (b * C + c) * T, *y = &rows[b * L] + d;
        for (n64 u = 0; u < T - d; u += 4)
          for (int j = 0; j < 4; j++) {
            v16 f = splat(u + j < T - d ? x[u + j] : 0.f);
            for (int m = 0; m < 4; m++) s[j][m] += f * at(y + u + j + 16 * m);
          }
      }
      for (int m = 0; m < 4; m++) put(&sums[d + 16 * m], s[0][m] + s[1][m] + s[2][m] + s[3][m]);
    }
    for (n64 d = 0; d < T; d++) gw[c * T + T - 1 - d] = sums[d];
  }
}

static inline n64 floor_div(n64 a, n64 b) { return a / b - (a % b < 0); }

// The brick wall by runs of the tile's rows; `wide`: floats of a pixel. Streaming where large.
void wall(const float *tile, float *out, n64 th, n64 tw, n64 h, n64 w, n64 wide, n64 offset,
          n64 ph, n64 pw, n64 stream, n64 threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (n64 row = 0; row < h; row++) {
    n64 y = h - 1 - row + ph, v = floor_div(y, th);
    const float *from = tile + (th - 1 - (y - v * th)) * tw * wide;
    float *to = out + row * w * wide;
    n64 x = -pw - v * offset, u = x - floor_div(x, tw) * tw;
    alignas(64) static thread_local float buffer[1 << 14];
    n64 filled = 0;
    for (n64 col = 0; col < w;) {
      n64 run = std::min(tw - u, w - col), n = run * wide;
      if (!stream) {
        float *p = to + col * wide;
        const float *q = from + u * wide;
        n64 i = 0;
        for (; i + 16 <= n; i += 16) put(p + i, at(q + i));
        for (; i < n; i++) p[i] = q[i];
      } else {
        memcpy(buffer + filled, from + u * wide, n * 4);
        filled += n;
      }
      col += run;
      u = 0;
    }
    if (stream) {
      n64 i = 0;
      for (; i < filled && ((uintptr_t)(to + i) & 63); i++) to[i] = buffer[i];
      for (; i + 16 <= filled; i += 16) _mm512_stream_ps(to + i, at(buffer + i));
      for (; i < filled; i++) to[i] = buffer[i];
    }
  }
  _mm_sfence();
}

void histogram(const n64 *index, float *bins, n64 n, n64 m, n64 threads) {
  if (threads == 1) {
    for (n64 i = 0; i < n; i++) bins[index[i]] += 1.f;
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> own(m, 0.f);
#pragma omp for nowait
    for (n64 i = 0; i < n; i++) own[index[i]] += 1.f;
#pragma omp critical
    for (n64 j = 0; j < m; j++) bins[j] += own[j];
  }
}

void crc16(const uint8_t *data, int32_t *out, n64 rows, n64 n) {
#pragma omp parallel for if (rows > 1)
  for (n64 r = 0; r < rows; r++) {
    int32_t crc = 0xFFFF;
    for (n64 i = 0; i < n; i++) {
      int32_t value = data[r * n + i];
      for (int j = 0; j < 8; j++) {
        if ((value & 1) ^ (crc & 1)) crc = (crc >> 1) ^ 0x8408;
        else crc >>= 1;
        value >>= 1;
      }
    }
    crc = ~crc & 0xFFFF;
    out[r] = ((crc << 8) | ((crc >> 8) & 0xFF)) & 0xFFFF;
  }
}

void forces(const float *p, float *out, n64 n, n64 threads) {
#pragma omp parallel for if (threads > 1)
  for (n64 i = 0; i < n; i++) {
    float ax = 0, ay = 0, az = 0;
    for (n64 j = 0; j < n; j++) {
      float dx = p[3 * j] - p[3 * i], dy = p[3 * j + 1] - p[3 * i + 1], dz = p[3 * j + 2] - p[3 * i + 2];
      float square = dx * dx + dy * dy + dz * dz + 1e-3f, w = 1 / (square * std::sqrt(square));
      ax += dx * w, ay += dy * w, az += dz * w;
    }
    out[3 * i] = ax, out[3 * i + 1] = ay, out[3 * i + 2] = az;
  }
}

void gray(const uint8_t *x, uint8_t *out, n64 n, n64 threads) {
#pragma omp parallel for if (threads > 1)
  for (n64 i = 0; i < n; i++) out[i] = (x[3 * i] * 77 + x[3 * i + 1] * 150 + x[3 * i + 2] * 29) >> 8;
}

void looked_up(const uint8_t *x, const uint8_t *table, uint8_t *out, n64 n, n64 threads) {
#pragma omp parallel for if (threads > 1)
  for (n64 i = 0; i < n; i++) out[i] = table[x[i]];
}

void edits(const uint8_t *a, const uint8_t *b, int32_t *out, n64 rows, n64 threads) {
#pragma omp parallel for if (threads > 1)
  for (n64 r = 0; r < rows; r++) {
    int32_t row[65];
    for (int j = 0; j <= 64; j++) row[j] = j;
    for (int i = 1; i <= 64; i++) {
      int32_t corner = row[0];
      row[0] = i;
      for (int j = 1; j <= 64; j++) {
        int32_t above = row[j], differs = a[r * 64 + i - 1] != b[r * 64 + j - 1];
        row[j] = std::min(std::min(row[j] + 1, row[j - 1] + 1), corner + differs);
        corner = above;
      }
    }
    out[r] = row[64];
  }
}
}
