"""Kernels whose gradients are tested. Each name says what is special."""

import math

import torch

import weft


@weft.kernel
def axpy(a, x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = a[()] * x[i] + y[i]
    return out


@weft.kernel
def conv(w, k, eps: float):
    B, C, T = k.shape
    out = torch.empty_like(k)
    for b, c, t in weft.ndrange(B, C, T):
        s = eps
        for u in range(t + 1):
            s += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s
    return out


@weft.kernel
def softmax(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        m = x[i, 0]
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
        s = 0.0
        for j in range(x.shape[1]):
            s += math.exp(x[i, j] - m)
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j] - m) / s
    return out


@weft.kernel
def product(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        p = 1.0
        for j in range(x.shape[1]):
            p *= x[i, j]
        out[i] = p
    return out


@weft.kernel
def newton(a):
    out = torch.empty_like(a)
    for i in range(a.shape[0]):
        x = a[i]
        while abs(x * x - a[i]) > 1e-12:
            x = 0.5 * (x + a[i] / x)
        out[i] = x * x * x
    return out


@weft.kernel
def total(x):
    s = 0.0
    for i, j in x:
        s += x[i, j] * x[i, j]
    return s


@weft.kernel
def scan(x, a):
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            if t == 0:
                out[b, t] = x[b, t]
            else:
                out[b, t] = a[b] * out[b, t - 1] + x[b, t]
    return out


@weft.kernel
def layernorm(x, w, bias):
    out = torch.empty_like(x)
    N = x.shape[1]
    for i in range(x.shape[0]):
        m = 0.0
        for j in range(N):
            m += x[i, j]
        m /= N
        v = 0.0
        for j in range(N):
            v += (x[i, j] - m) ** 2
        r = 1 / math.sqrt(v / N + 1e-5)
        for j in range(N):
            out[i, j] = (x[i, j] - m) * r * w[j] + bias[j]
    return out


@weft.kernel
def breaks(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 1.0
        for j in range(x.shape[1]):
            if x[i, j] < -1.0:
                continue
            for k in range(j + 1):
                s = s * (1 + 0.1 * x[i, k]) + x[i, j]
            if s > 4:
                break
        out[i] = math.sin(s) * s
    return out


@weft.kernel
def local(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        h = weft.zeros((4,), weft.f64)
        for j in range(x.shape[1]):
            h[j % 4] = h[j % 4] * x[i, j] + h[(j + 1) % 4] + x[i, j]
        s = 1.0
        for j in range(4):
            s *= h[j] + 2
        out[i] = s
    return out


@weft.kernel
def histogram(x, idx, n: int):
    out = x.new_zeros(n)
    for i in range(x.shape[0]):
        out[idx[i]] += x[i] * x[i]
    return out


@weft.kernel
def pick(x, idx):
    out = x.new_empty(idx.shape[0])
    for i in range(idx.shape[0]):
        out[i] = x[idx[i]] ** 2
    return out


@weft.kernel
def inplace(x):
    y = x.clone()
    for i in range(x.shape[0]):
        y[i] = y[i] * y[i] + y[i]
    return y


@weft.kernel
def stride2(x, w):
    out = x.new_empty((x.shape[0] - w.shape[0]) // 2 + 1)
    for t in range((x.shape[0] - w.shape[0]) // 2 + 1):
        s = 0.0
        for k in range(w.shape[0]):
            s += x[2 * t + k] * w[k]
        out[t] = s * s
    return out


@weft.kernel
def maximum(x):
    m = -math.inf
    for i, j in x:
        m = max(m, x[i, j] * x[i, j])
    return m


@weft.kernel
def product_of_all(x):
    p = 1.0
    for i in range(x.shape[0]):
        p *= x[i] + 1.0
    return p


@weft.kernel
def two(x, w):
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = math.sin(x[i]) * w[i]
    z = (y * 2).view(-1)
    s = 0.0
    for i in range(x.shape[0]):
        s += z[i] * z[i] * x[i]
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = z[i] * x[i]
    return out, s


@weft.kernel
def sumexp(x, y):
    s = 0.0
    for i, j in weft.ndrange(x.shape[0], y.shape[0]):
        s += math.exp(-((x[i] - y[j]) ** 2))
    return s


@weft.kernel
def blur(x):
    out = torch.empty_like(x)
    H, W = x.shape
    for i, j in x:
        s = 0.0
        for a in range(max(i - 1, 0), min(i + 2, H)):
            for b in range(max(j - 1, 0), min(j + 2, W)):
                s += x[a, b] * x[i, j]
        out[i, j] = s
    return out


@weft.kernel
def periodic(x):
    out = torch.empty_like(x)
    n = x.shape[0]
    for i in range(n):
        out[i] = x[(i + 1) % n] * x[i] - x[(i - 1) % n]
    return out


@weft.kernel
def clamped(x, lo: float, hi: float):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = min(max(x[i], lo), hi) + abs(x[i])
    return out


@weft.kernel
def accumulate(x, y):
    for i in range(x.shape[0]):
        y[i] += x[i] * x[i]


@weft.kernel
def wkv(w, u, k, v):
    B, T, C = k.shape
    y = torch.empty_like(v)
    for b, c in weft.ndrange(B, C):
        p = 0.0
        q = 0.0
        o = -1e38
        for t in range(T):
            no = max(o, u[c] + k[b, t, c])
            A = math.exp(o - no)
            Bx = math.exp(u[c] + k[b, t, c] - no)
            y[b, t, c] = (A * p + Bx * v[b, t, c]) / (A * q + Bx)
            no = max(w[c] + o, k[b, t, c])
            A = math.exp(w[c] + o - no)
            Bx = math.exp(k[b, t, c] - no)
            p = A * p + Bx * v[b, t, c]
            q = A * q + Bx
            o = no
    return y


@weft.kernel
def vecs(x, m):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        v = weft.Vector([x[i, 0], x[i, 1], x[i, 2]])
        a = weft.Matrix(
            [[m[0, 0], m[0, 1], m[0, 2]], [m[1, 0], m[1, 1], m[1, 2]], [m[2, 0], m[2, 1], m[2, 2]]]
        )
        y = a @ v
        n = y.norm()
        for c in weft.static(range(3)):
            out[i, c] = y[c] / n
    return out


@weft.kernel
def cumsum(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
            out[i, j] = s
    return out


@weft.kernel
def upsample(x):
    out = x.new_empty(2 * x.shape[0])
    for i in range(2 * x.shape[0]):
        out[i] = x[i // 2] * (i + 1)
    return out


@weft.kernel
def larger(a, b):
    out = torch.empty_like(a)
    for i in range(a.shape[0]):
        out[i] = max(a[i], b[i])
    return out


@weft.kernel
def nested(x, lengths):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.5
        for j in range(lengths[i]):
            for k in range(j, lengths[i]):
                s = s * x[i, k] + math.cos(x[i, j])
        out[i] = s * s
    return out


@weft.kernel
def branches(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        before = x[i] * y[i]
        a = before
        if x[i] > 0.2:
            a = a * a
            if y[i] > 0:
                a += math.exp(x[i])
        elif x[i] < -0.5:
            a = math.tanh(a) * y[i]
        for _ in range(3):
            a = a * 0.5 + before
        out[i] = a * before
    return out


@weft.kernel
def inner(m, v):
    out = torch.empty_like(v)
    for i in range(v.shape[0]):
        a = weft.zeros((3,), weft.f64)
        for j in range(3):
            a[j] = v[j] * m[i, j]
        for j in range(1, 3):
            a[j] = a[j] * a[j - 1] + a[j]
            if a[j] > 0:
                a[0] = a[0] + a[j] * a[j]
        s = 0.0
        for j in range(3):
            s += a[j] * a[0]
        out[i] = s
    return out


@weft.kernel
def switch(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        n = 0
        s = 1.0
        while n < x.shape[1] and s < 50.0:
            k = 0
            while k <= n:
                s = s * (1.0 + 0.3 * x[i, k]) + 0.1
                k += 1
            out[i, n] = s
            n += 1
        for j in range(n, x.shape[1]):
            out[i, j] = x[i, j]
    return out
