"""Kernels whose iterations read elements and then overwrite them, as textbooks write them."""

import math

import torch

import weft

# Arguments by name: `a` and `b` are (n, n), `a` is positive definite; `c` is (n, n), `x` (m, n),
# `a3` (m, n, n), `v` and `w` (n,), `v8` (8,).


@weft.kernel
def softmax(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        m = x[i, 0]
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] = weft.math.exp(x[i, j] - m)
            s += out[i, j]
        for j in range(x.shape[1]):
            out[i, j] /= s
    return out


@weft.kernel
def log_softmax(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        m = x[i, 0]
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] - m
            s += weft.math.exp(out[i, j])
        for j in range(x.shape[1]):
            out[i, j] -= weft.math.log(s)
    return out


@weft.kernel
def softmax_times_the_inverse(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] = weft.math.exp(x[i, j])
            s += out[i, j]
        for j in range(x.shape[1]):
            out[i, j] *= 1.0 / s
    return out


@weft.kernel
def cholesky_left(a):
    A = a.clone()
    for _ in range(1):
        for j in range(A.shape[0]):
            for k in range(j):
                A[j, j] -= A[j, k] * A[j, k]
            A[j, j] = weft.math.sqrt(A[j, j])
            for i in range(j + 1, A.shape[0]):
                for k in range(j):
                    A[i, j] -= A[i, k] * A[j, k]
                A[i, j] /= A[j, j]
    return A


@weft.kernel
def cholesky_right(a):
    A = a.clone()
    n = A.shape[0]
    for _ in range(1):
        for k in range(n):
            A[k, k] = weft.math.sqrt(A[k, k])
            for i in range(k + 1, n):
                A[i, k] = A[i, k] / A[k, k]
            for j in range(k + 1, n):
                for i in range(j, n):
                    A[i, j] -= A[i, k] * A[j, k]
    return A


@weft.kernel
def lu(a):
    A = a.clone()
    n = A.shape[0]
    weft.loop_config(serialize=True)
    for k in range(n):
        for i in range(k + 1, n):
            A[i, k] /= A[k, k]
            for j in range(k + 1, n):
                A[i, j] -= A[i, k] * A[k, j]
    return A


@weft.kernel
def lu_batch(a3):
    A = a3.clone()
    for b in range(A.shape[0]):
        n = A.shape[1]
        for k in range(n):
            for i in range(k + 1, n):
                A[b, i, k] /= A[b, k, k]
                for j in range(k + 1, n):
                    A[b, i, j] -= A[b, i, k] * A[b, k, j]
    return A


@weft.kernel
def trisolve(a, v):
    x = v.clone()
    for _ in range(1):
        for i in range(x.shape[0]):
            for j in range(i):
                x[i] -= a[i, j] * x[j]
            x[i] /= a[i, i]
    return x


@weft.kernel
def trisolve_back(a, v):
    x = v.clone()
    n = x.shape[0]
    for _ in range(1):
        for i in range(n - 1, -1, -1):
            x[i] = v[i]
            for j in range(i + 1, n):
                x[i] -= a[i, j] * x[j]
            x[i] = x[i] / a[i, i]
    return x


@weft.kernel
def thomas(a):
    n = a.shape[1]
    c = a[0] * 0.1
    d = a[1].clone()
    for _ in range(1):
        c[0] = c[0] / (4 + a[2, 0])
        d[0] = d[0] / (4 + a[2, 0])
        for i in range(1, n):
            w = 1.0 / (4 + a[2, i] - 0.3 * c[i - 1])
            c[i] = c[i] * w
            d[i] = (d[i] - 0.3 * d[i - 1]) * w
        for i in range(n - 2, -1, -1):
            d[i] = d[i] - c[i] * d[i + 1]
    return d


@weft.kernel
def durbin(v):
    n = v.shape[0]
    r = v * 0.2
    y = torch.zeros_like(v)
    z = torch.zeros_like(v)
    for _ in range(1):
        y[0] = -r[0]
        beta = 1.0
        alpha = -r[0]
        for k in range(1, n):
            beta = (1 - alpha * alpha) * beta
            s = 0.0
            for i in range(k):
                s += r[k - i - 1] * y[i]
            alpha = -(r[k] + s) / beta
            for i in range(k):
                z[i] = y[i] + alpha * y[k - i - 1]
            for i in range(k):
                y[i] = z[i]
            y[k] = alpha
    return y


@weft.kernel
def gauss_seidel(a):
    A = a.clone()
    n = A.shape[0]
    weft.loop_config(serialize=True)
    for _ in range(2):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                south = A[i + 1, j] * A[i, j - 1]
                A[i, j] = 0.2 * (A[i, j] ** 2 + A[i - 1, j] + south + A[i, j - 1] + A[i, j + 1])
    return A


@weft.kernel
def covariance(a):
    data = a.clone()
    mean = a.new_zeros(a.shape[1])
    for j in range(a.shape[1]):
        for i in range(a.shape[0]):
            mean[j] += data[i, j]
        mean[j] /= a.shape[0]
        for i in range(a.shape[0]):
            data[i, j] -= mean[j]
    cov = a.new_zeros(a.shape[1], a.shape[1])
    for i, j in cov:
        for k in range(a.shape[0]):
            cov[i, j] += data[k, i] * data[k, j]
        cov[i, j] /= a.shape[0] - 1.0
    return cov


@weft.kernel
def correlation(a):
    data = a.clone()
    n = a.shape[0]
    std = a.new_zeros(a.shape[1])
    mean = a.new_zeros(a.shape[1])
    for j in range(a.shape[1]):
        for i in range(n):
            mean[j] += data[i, j]
        mean[j] /= n
        for i in range(n):
            std[j] += (data[i, j] - mean[j]) ** 2
        std[j] = weft.math.sqrt(std[j] / n)
        if std[j] <= 0.1:
            std[j] = 1.0
        for i in range(n):
            data[i, j] -= mean[j]
            data[i, j] /= weft.math.sqrt(float(n)) * std[j]
    corr = a.new_zeros(a.shape[1], a.shape[1])
    for _ in range(1):
        for i in range(a.shape[1]):
            corr[i, i] = 1.0
            for j in range(i + 1, a.shape[1]):
                for k in range(n):
                    corr[i, j] += data[k, i] * data[k, j]
                corr[j, i] = corr[i, j]
    return corr


@weft.kernel
def gram_schmidt(a):
    A = a.clone()
    Q = torch.empty_like(a)
    R = torch.zeros_like(a)
    n = a.shape[0]
    for _ in range(1):
        for k in range(n):
            nrm = 0.0
            for i in range(n):
                nrm += A[i, k] * A[i, k]
            R[k, k] = weft.math.sqrt(nrm)
            for i in range(n):
                Q[i, k] = A[i, k] / R[k, k]
            for j in range(k + 1, n):
                for i in range(n):
                    R[k, j] += Q[i, k] * A[i, j]
                for i in range(n):
                    A[i, j] -= Q[i, k] * R[k, j]
    return Q, R


@weft.kernel
def gemm(a, b, c):
    C = c.clone()
    for i, j in C:
        C[i, j] *= 1.5
        for k in range(a.shape[1]):
            C[i, j] += 0.5 * a[i, k] * b[k, j]
    return C


@weft.kernel
def syrk(a, c):
    C = c.clone()
    for i in range(C.shape[0]):
        for j in range(i + 1):
            C[i, j] *= 1.5
        for k in range(a.shape[1]):
            for j in range(i + 1):
                C[i, j] += 0.5 * a[i, k] * a[j, k]
    return C


@weft.kernel
def gemver(a, v):
    A = a.clone()
    n = v.shape[0]
    x = torch.zeros_like(v)
    w = torch.zeros_like(v)
    for _ in range(1):
        for i in range(n):
            for j in range(n):
                A[i, j] = A[i, j] + v[i] * v[j]
        for i in range(n):
            for j in range(n):
                x[i] = x[i] + 1.2 * A[j, i] * v[j]
        for i in range(n):
            x[i] = x[i] + v[i]
        for i in range(n):
            for j in range(n):
                w[i] = w[i] + 1.5 * A[i, j] * x[j]
    return w


@weft.kernel
def prefix(v):
    x = v.clone()
    for _ in range(1):
        for i in range(1, x.shape[0]):
            x[i] += x[i - 1] * x[i]
    return x


@weft.kernel
def running_max(v):
    x = v.clone()
    for _ in range(1):
        for i in range(1, x.shape[0]):
            x[i] = max(x[i], x[i - 1])
    return x


@weft.kernel
def horner(a, v):
    y = torch.zeros_like(v)
    for i in range(v.shape[0]):
        for k in range(a.shape[1]):
            y[i] = y[i] * v[i] + a[i, k]
    return y


@weft.kernel
def fft(v8):
    re = v8.clone()
    im = v8 * 0.5
    for _ in range(1):
        h = 1
        while h < 8:
            for start in range(0, 8, 2 * h):
                for j in range(h):
                    c = weft.math.cos(math.pi * j / h)
                    s = -weft.math.sin(math.pi * j / h)
                    p = start + j
                    q = p + h
                    tr = re[q] * c - im[q] * s
                    ti = re[q] * s + im[q] * c
                    re[q] = re[p] - tr
                    im[q] = im[p] - ti
                    re[p] += tr
                    im[p] += ti
            h *= 2
    return re, im


@weft.kernel
def fft_for(v8):
    re = v8.clone()
    im = v8 * 0.5
    for _ in range(1):
        for stage in range(3):
            h = 1 << stage
            for q in range(4):
                j = q % h
                p = (q // h) * 2 * h + j
                c = weft.math.cos(math.pi * j / h)
                tr = re[p + h] * c
                re[p + h] = re[p] - tr
                re[p] = (re[p] + tr) * im[p]
    return re, im


@weft.kernel
def vadv(a):
    wcon, ustage = a * 0.3, a.clone()
    ccol, dcol = torch.zeros_like(a), torch.zeros_like(a)
    for i in range(a.shape[0]):
        K = a.shape[1]
        for k in range(K):
            ccol[i, k] = 0.1 * wcon[i, k]
            dcol[i, k] = ustage[i, k] * wcon[i, k]
            if k > 0:
                div = 1.0 / (2.0 + wcon[i, k] - ccol[i, k - 1] * 0.2)
                ccol[i, k] = ccol[i, k] * div
                dcol[i, k] = (dcol[i, k] - dcol[i, k - 1] * 0.2) * div
        data = dcol[i, K - 1]
        for k in range(K - 2, -1, -1):
            data = dcol[i, k] - ccol[i, k] * data
            dcol[i, k] = data
    return dcol


@weft.kernel
def bubble(v):
    x = v.clone()
    for _ in range(1):
        for i in range(x.shape[0]):
            for j in range(x.shape[0] - 1 - i):
                if x[j] > x[j + 1]:
                    t = x[j]
                    x[j] = x[j + 1]
                    x[j + 1] = t
    return x


@weft.kernel
def newton(v):
    x = v * v + 1.0
    for i in range(v.shape[0]):
        n = 0
        while n < 5:
            x[i] = x[i] - (x[i] * x[i] - 2.0 - v[i] * v[i]) / (2 * x[i])
            n += 1
    return x


@weft.kernel
def lengths_from_what_is_overwritten(v):
    x = v.clone()
    y = torch.zeros_like(v)
    for i in range(v.shape[0]):
        n = int(x[i] * x[i]) + 2
        x[i] = 0.5 * v[i]
        s = v[i]
        for _ in range(n):
            s = weft.math.sin(s) + x[i]
            x[i] = 0.3 * x[i] * s
        y[i] = s + x[i]
    return y


@weft.kernel
def updates_of_own_elements(v):
    x = v.clone()
    y = torch.ones_like(v)
    for i in range(v.shape[0]):
        for j in range(3):
            y[i] *= x[i] + j
            x[i] = max(x[i], v[j]) * 0.5
        weft.atomic_max(y[i], x[i])
    return y, x


@weft.kernel
def rows_scaled_again(x):
    out = x.clone()
    for i in range(x.shape[0]):
        for _ in range(3):
            norm = 1.0
            for j in range(x.shape[1]):
                norm += out[i, j] * out[i, j]
            for j in range(x.shape[1]):
                out[i, j] = out[i, j] * out[i, j] / norm
    return out


@weft.kernel
def squared_again(x):
    y = x.clone()
    for i, j in y:
        for t in range(3):
            y[i, j] = y[i, j] * y[i, j] + t
    return y


@weft.kernel
def exchanged_by_data(v, p):
    x = v.clone()
    for _ in range(1):
        for i in range(x.shape[0]):
            t = x[i]
            x[i] = x[p[i]] * t
            x[p[i]] = t + x[i]
    return x


@weft.kernel
def until_small(x):
    y = x.clone()
    for i in range(y.shape[0]):
        j = 0
        while abs(y[i, 0]) > 0.3 and j < 20:
            k = 0
            while k < y.shape[1] and y[i, k] < 5.0:
                y[i, k] = 0.5 * y[i, k] + 0.1 * y[i, 0] * y[i, k]
                k += 1
            j += 1
    return y


@weft.kernel
def a_total_of_what_is_overwritten(x):
    y = x.clone()
    total = 0.0
    for i in range(y.shape[0]):
        for j in range(1, y.shape[1]):
            y[i, j] = y[i, j] * y[i, j - 1]
            total += y[i, j]
            y[i, j] = weft.math.sin(y[i, j])
    return total, y


@weft.kernel
def the_largest_of_what_is_overwritten(x):
    y = x.clone()
    top = -math.inf
    for i in range(y.shape[0]):
        for j in range(1, y.shape[1]):
            y[i, j] = y[i, j] * y[i, j - 1]
        top = max(top, y[i, 2])
        y[i, 2] = y[i, 2] * y[i, 1]
    return top, y


@weft.kernel
def a_local_array_beside(x):
    y = x.clone()
    for i in range(y.shape[0]):
        h = weft.zeros((2,), weft.f64)
        for j in range(y.shape[1]):
            h[j % 2] = h[(j + 1) % 2] * y[i, j] + y[i, 0]
            y[i, 0] = y[i, 0] * h[j % 2]
    return y


@weft.kernel
def updates_of_a_local_array(x):
    y = torch.zeros_like(x)
    for i in range(x.shape[0]):
        h = weft.zeros((2,), weft.f64)
        h[0] = 1.0
        for j in range(x.shape[1]):
            h[j % 2] *= x[i, j] + 2.0
            found = weft.atomic_max(h[1], x[i, j])
            y[i, j] = h[0] * h[1] + found * found
            h[0] *= h[1]
    return y
