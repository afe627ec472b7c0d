/* Kernels for the CPU: an LSTM layer, a dense layer and Adam, called by XLA through its foreign-function interface.

   Arrays are feature-major: the batch is the last axis, and LANES values of it make one vector V. Products keep a tile
   of up to TILE accumulators in registers and broadcast one weight at a time, so that each weight is loaded once per
   use and nothing is packed. A batch that is no multiple of LANES is padded with zeros, block by block.
   Leading axes (clients) are worked through one after the other: one call runs on one core. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define TILE 24
#elif defined(__AVX__)
#include <immintrin.h>
#define LANES 8
#define TILE 12
#else
#define LANES 4
#define TILE 20
#endif
#define WIDE 6 /* vectors in a row of an outer-product tile */
#define HIGH (TILE / WIDE)

typedef float V __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef float U __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* anywhere in memory */
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

INLINE V all(float x) { return x - (V){0}; }
INLINE V pick(I mask, V x, V y) { return (V)((mask & (I)x) | (~mask & (I)y)); }
INLINE float total(V x) {
  float sum = 0;
  UNROLL for (int i = 0; i < LANES; i++) sum += x[i];
  return sum;
}

/* The smaller and the larger of two; where y is NaN, so is the result. */
#if defined(__AVX512F__)
INLINE V least(V x, V y) { return (V)_mm512_min_ps((__m512)x, (__m512)y); }
INLINE V most(V x, V y) { return (V)_mm512_max_ps((__m512)x, (__m512)y); }
#elif defined(__AVX__)
INLINE V least(V x, V y) { return (V)_mm256_min_ps((__m256)x, (__m256)y); }
INLINE V most(V x, V y) { return (V)_mm256_max_ps((__m256)x, (__m256)y); }
#else
INLINE V least(V x, V y) { return pick(x < y, x, y); }
INLINE V most(V x, V y) { return pick(x > y, x, y); }
#endif

/* ---- elementwise functions ---- */

/* 1 / x for positive normal x, to the last digit or two. */
INLINE V inverse(V x) {
#if defined(__AVX512F__)
  V y = (V)_mm512_rcp14_ps((__m512)x);
  return y + y * (1 - x * y);
#else
  return 1 / x;
#endif
}

/* sqrt(x) for x >= 0; below 1e-37 it is that of 1e-37. */
INLINE V root(V x) {
  x = most(all(1e-37f), x);
#if defined(__AVX512F__)
  V y = (V)_mm512_rsqrt14_ps((__m512)x), a = x * y; /* and a Newton step */
  return a + 0.5f * a * (1 - a * y);
#elif defined(__AVX__)
  return (V)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
  return x;
#endif
}

/* tanh(x) = x p(x^2) / q(x^2), relative error below 4e-7 (tools/tanh.py finds the coefficients). NaN stays NaN. */
INLINE V hyperbolic(V x) {
  x = most(all(-8.0f), least(all(8.0f), x));
  V u = x * x;
  V p = -1.156422313e-13f * u + 6.365503112e-11f;
  p = p * u + -2.231460407e-08f;
  p = p * u + 1.164242978e-05f;
  p = p * u + 3.149363397e-03f;
  p = p * u + 1.312434858e-01f;
  p = p * u + 9.999999982e-01f;
  V q = 2.612972323e-04f * u + 2.467499513e-02f;
  q = q * u + 4.645768009e-01f;
  q = q * u + 1;
  return x * p * inverse(q);
}

/* ---- products ---- */

/* sum[i] += sum over k of w[i * down + k * right] * x[k], for R rows i. */
INLINE void tile(const int R, V *sum, const float *w, ptrdiff_t down, ptrdiff_t right, int num_k, const V *x) {
  V acc[TILE];
  UNROLL for (int i = 0; i < R; i++) acc[i] = sum[i];
  for (int k = 0; k < num_k; k++) {
    V xk = x[k];
    const float *wk = w + k * right;
    UNROLL for (int i = 0; i < R; i++) acc[i] += wk[i * down] * xk;
  }
  UNROLL for (int i = 0; i < R; i++) sum[i] = acc[i];
}

#define CASE(r) case r: tile(r, sum, w, down, right, num_k, x); break;
#define NOINLINE static __attribute__((noinline))

NOINLINE void tile_any(int rows, V *sum, const float *w, ptrdiff_t down, ptrdiff_t right, int num_k, const V *x) {
  switch (rows) {
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#if TILE > 12
    CASE(13) CASE(14) CASE(15) CASE(16) CASE(17) CASE(18) CASE(19) CASE(20)
#endif
#if TILE > 20
    CASE(21) CASE(22) CASE(23) CASE(24)
#endif
  }
}

/* The same for any number of rows, in tiles of nearly equal height. */
static void multiply(int num_rows, V *sum, const float *w, ptrdiff_t down, ptrdiff_t right, int num_k, const V *x) {
  int num_tiles = (num_rows + TILE - 1) / TILE;
  for (int t = 0, i = 0; t < num_tiles; t++) {
    int rows = (num_rows - i) / (num_tiles - t);
    tile_any(rows, sum + i, w + i * down, down, right, num_k, x);
    i += rows;
  }
}

/* out[i][j] = sum over l of a[i * down + l * right] * b[l][j], for H rows i and W vectors j; `b` has rows of `step`
   vectors; with `adds`, to what is in `out`. */
INLINE void outer(const int H, const int W, int adds, V *out, ptrdiff_t out_step, const float *a, ptrdiff_t down,
                  ptrdiff_t right, int num_l, const V *b, ptrdiff_t step) {
  V acc[HIGH][WIDE];
  UNROLL for (int i = 0; i < H; i++) {
    UNROLL for (int j = 0; j < W; j++) acc[i][j] = adds ? out[i * out_step + j] : (V){0};
  }
  for (int l = 0; l < num_l; l++) {
    V row[WIDE];
    UNROLL for (int j = 0; j < W; j++) row[j] = b[l * step + j];
    UNROLL for (int i = 0; i < H; i++) {
      V x = all(a[i * down + l * right]);
      UNROLL for (int j = 0; j < W; j++) acc[i][j] += x * row[j];
    }
  }
  UNROLL for (int i = 0; i < H; i++) {
    UNROLL for (int j = 0; j < W; j++) out[i * out_step + j] = acc[i][j];
  }
}

#define OUTER(h, w) case w: outer(h, w, adds, out, out_step, a, down, right, num_l, b, step); break;
#define OUTERS(h) switch (wide) { OUTER(h, 1) OUTER(h, 2) OUTER(h, 3) OUTER(h, 4) OUTER(h, 5) OUTER(h, 6) }

NOINLINE void outer_high(int wide, int adds, V *out, ptrdiff_t out_step, const float *a, ptrdiff_t down, ptrdiff_t right,
                         int num_l, const V *b, ptrdiff_t step) { OUTERS(HIGH) }
NOINLINE void outer_one(int wide, int adds, V *out, ptrdiff_t out_step, const float *a, ptrdiff_t down, ptrdiff_t right,
                        int num_l, const V *b, ptrdiff_t step) { OUTERS(1) }

/* The same for any number of rows and vectors. */
static void multiply_outer(int num_rows, int num_vectors, int adds, V *out, ptrdiff_t out_step, const float *a, ptrdiff_t down,
                           ptrdiff_t right, int num_l, const V *b, ptrdiff_t step) {
  int num_tiles = (num_vectors + WIDE - 1) / WIDE;
  for (int t = 0, j = 0; t < num_tiles; t++) {
    int wide = (num_vectors - j) / (num_tiles - t), i = 0;
    for (; i + HIGH <= num_rows; i += HIGH)
      outer_high(wide, adds, out + i * out_step + j, out_step, a + i * down, down, right, num_l, b + j, step);
    for (; i < num_rows; i++)
      outer_one(wide, adds, out + i * out_step + j, out_step, a + i * down, down, right, num_l, b + j, step);
    j += wide;
  }
}

/* ---- moving blocks of the batch ---- */

INLINE V load_some(const float *from, int count) {
  V x = {0};
  if (count >= LANES) return *(const U *)from;
  memcpy(&x, from, count * sizeof(float));
  return x;
}

INLINE void store_some(float *to, V x, int count) {
  if (count >= LANES) *(U *)to = x;
  else memcpy(to, &x, count * sizeof(float));
}

/* An array of (rows, LANES) can be used where it lies. */
INLINE int is_block(const float *array, int batch) { return batch == LANES && (uintptr_t)array % sizeof(V) == 0; }

/* LANES columns of (rows, batch) from column b on, and back; lanes beyond the batch are zero. */
static void load_block(V *to, const float *from, int num_rows, int batch, int b) {
  if (batch - b >= LANES)
    for (int i = 0; i < num_rows; i++) to[i] = *(const U *)(from + (size_t)i * batch + b);
  else
    for (int i = 0; i < num_rows; i++) to[i] = load_some(from + (size_t)i * batch + b, batch - b);
}

/* The rows of a block: those of the array itself where they can be used, else a copy. */
static V *rows_at(V *copy, const float *array, int num_rows, int batch, int b) {
  if (is_block(array, batch)) return (V *)array;
  load_block(copy, array, num_rows, batch, b);
  return copy;
}

static void store_block(float *to, const V *from, int num_rows, int batch, int b) {
  for (int i = 0; i < num_rows; i++) store_some(to + (size_t)i * batch + b, from[i], batch - b);
}

#if LANES == 16
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define REST(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif LANES == 8
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define REST(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define REST(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* to[b][i] = from[i][b]: num_rows vectors become LANES rows of `step` vectors; missing rows are zero. */
static void transpose(V *to, ptrdiff_t step, const V *from, int num_rows) {
  for (int i = 0; i * LANES < num_rows; i++) {
    V x[LANES], y[LANES];
    int left = num_rows - i * LANES;
    UNROLL for (int k = 0; k < LANES; k++) x[k] = k < left ? from[i * LANES + k] : (V){0};
    UNROLL for (int stage = 1; stage < LANES; stage *= 2) { /* a perfect shuffle, log2(LANES) times */
      UNROLL for (int k = 0; k < LANES / 2; k++) {
        y[2 * k] = LOW(x[k], x[k + LANES / 2]);
        y[2 * k + 1] = REST(x[k], x[k + LANES / 2]);
      }
      UNROLL for (int k = 0; k < LANES; k++) x[k] = y[k];
    }
    UNROLL for (int k = 0; k < LANES; k++) to[k * step + i] = x[k];
  }
}

/* ---- scratch memory: one block per thread, kept and grown ---- */

static V *scratch(size_t num_vectors) {
  static _Thread_local struct { V *memory; size_t size; } own;
  if (own.size < num_vectors) {
    free(own.memory);
    own.memory = aligned_alloc(64, (num_vectors * sizeof(V) + 63) / 64 * 64);
    own.size = own.memory ? num_vectors : 0;
  }
  return own.memory;
}

/* ---- the foreign-function interface ---- */

static XLA_FFI_Error *failure(XLA_FFI_CallFrame *frame, const char *message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, message, XLA_FFI_Error_Code_INTERNAL};
  return frame->api->XLA_FFI_Error_Create(&args);
}

/* XLA first asks every function for its version. */
static int is_question(XLA_FFI_CallFrame *frame) {
  if (frame->extension_start == NULL || frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  return 1;
}

INLINE XLA_FFI_Buffer *argument(XLA_FFI_CallFrame *frame, int k) { return frame->args.args[k]; }
INLINE XLA_FFI_Buffer *answer(XLA_FFI_CallFrame *frame, int k) { return frame->rets.rets[k]; }
INLINE float *floats(XLA_FFI_Buffer *buffer) { return buffer->data; }
/* The axis that is `k`th from the end, k from 1. */
INLINE int axis(XLA_FFI_Buffer *buffer, int k) { return (int)buffer->dims[buffer->rank - k]; }
INLINE int64_t count(XLA_FFI_Buffer *buffer, int skipped) { /* elements of all axes but the last `skipped` */
  int64_t n = 1;
  for (int64_t k = 0; k < buffer->rank - skipped; k++) n *= buffer->dims[k];
  return n;
}

/* ---- LSTM: gates in the order i, f, g, o; h and c start at zero ---- */

/* One block of the batch: inputs x, states h and c, and the four gates, each for all times. */
typedef struct { V *x, *h, *c, *gates; } Block;

static Block block_at(V *memory, int num_t, int num_x, int num_h) {
  V *h = memory + num_t * num_x, *c = h + num_t * num_h;
  return (Block){memory, h, c, c + num_t * num_h};
}

static size_t block_size(int num_t, int num_x, int num_h) { return (size_t)num_t * (num_x + 6 * num_h); }

INLINE V sigmoid(V x) { return 0.5f + 0.5f * hyperbolic(0.5f * x); }

/* (w_x, w_h, bias, x) -> (h), or (h, gates, c) for the way back */
static XLA_FFI_Error *run_lstm_forward(XLA_FFI_CallFrame *frame, int keeps) {
  XLA_FFI_Buffer *wx = argument(frame, 0), *wh = argument(frame, 1), *x = argument(frame, 3);
  int num_h = axis(wh, 1), num_x = axis(wx, 1), num_t = axis(x, 3), batch = axis(x, 1), num_z = 4 * num_h;
  V *memory = scratch(block_size(num_t, num_x, num_h));
  if (memory == NULL) return failure(frame, "out of memory in the LSTM");
  Block own = block_at(memory, num_t, num_x, num_h);
  int64_t num_clients = count(x, 3);
  for (int64_t n = 0; n < num_clients; n++) {
    const float *w_x = floats(wx) + n * num_z * num_x, *w_h = floats(wh) + n * num_z * num_h;
    const float *bias = floats(argument(frame, 2)) + n * num_z;
    float *h_out = floats(answer(frame, 0)) + n * num_t * num_h * batch;
    float *z_out = keeps ? floats(answer(frame, 1)) + n * num_t * num_z * batch : NULL;
    float *c_out = keeps ? floats(answer(frame, 2)) + n * num_t * num_h * batch : NULL;
    int is_direct = keeps && is_block(h_out, batch) && is_block(z_out, batch) && is_block(c_out, batch);
    if (is_direct) own = (Block){memory, (V *)h_out, (V *)c_out, (V *)z_out};
    for (int b = 0; b < batch; b += LANES) {
      own.x = rows_at(memory, floats(x) + n * num_t * num_x * batch, num_t * num_x, batch, b);
      for (int t = 0; t < num_t; t++) {
        V *z = own.gates + t * num_z, *c = own.c + t * num_h, *h = own.h + t * num_h;
        for (int i = 0; i < num_z; i++) z[i] = all(bias[i]);
        multiply(num_z, z, w_x, num_x, 1, num_x, own.x + t * num_x);
        if (t) multiply(num_z, z, w_h, num_h, 1, num_h, h - num_h);
        for (int i = 0; i < 2 * num_h; i++) z[i] = sigmoid(z[i]);
        for (int i = 2 * num_h; i < 3 * num_h; i++) z[i] = hyperbolic(z[i]);
        for (int i = 3 * num_h; i < num_z; i++) z[i] = sigmoid(z[i]);
        for (int i = 0; i < num_h; i++) {
          c[i] = z[i] * z[2 * num_h + i];
          if (t) c[i] += z[num_h + i] * (c - num_h)[i];
          h[i] = z[3 * num_h + i] * hyperbolic(c[i]);
        }
      }
      if (is_direct) continue;
      store_block(h_out, own.h, num_t * num_h, batch, b);
      if (!keeps) continue;
      store_block(z_out, own.gates, num_t * num_z, batch, b);
      store_block(c_out, own.c, num_t * num_h, batch, b);
    }
  }
  return NULL;
}

/* (w_x, w_h, x, h, gates, c, d_h) -> (d_w_x, d_w_h, d_bias, d_x) */
static XLA_FFI_Error *run_lstm_backward(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Buffer *wx = argument(frame, 0), *wh = argument(frame, 1), *x = argument(frame, 2);
  int num_h = axis(wh, 1), num_x = axis(wx, 1), num_t = axis(x, 3), batch = axis(x, 1), num_z = 4 * num_h;
  int num_seen = num_x + num_h + 1;         /* inputs, the state before, and 1 for the bias */
  int z_step = (num_z + LANES - 1) / LANES; /* vectors in a transposed row of dz */
  size_t size = block_size(num_t, num_x, num_h), states = (size_t)num_t * num_h;
  V *memory = scratch(size + states + num_z + 2 * num_h + num_t * (num_x + LANES * z_step + num_seen) +
                      num_seen * z_step);
  if (memory == NULL) return failure(frame, "out of memory in the LSTM");
  Block copy = block_at(memory, num_t, num_x, num_h), own = copy;
  V *d_copy = memory + size, *dz = d_copy + states, *dh = dz + num_z, *dc = dh + num_h, *dx = dc + num_h;
  V *dz_t = dx + num_t * num_x, *seen = dz_t + num_t * LANES * z_step;
  V *dw = seen + num_t * num_seen; /* (seen, z), summed over the blocks */
  int64_t num_clients = count(x, 3);
  for (int64_t n = 0; n < num_clients; n++) {
    const float *w_x = floats(wx) + n * num_z * num_x, *w_h = floats(wh) + n * num_z * num_h;
    for (int b = 0; b < batch; b += LANES) {
      own.x = rows_at(copy.x, floats(x) + n * num_t * num_x * batch, num_t * num_x, batch, b);
      own.h = rows_at(copy.h, floats(argument(frame, 3)) + n * states * batch, num_t * num_h, batch, b);
      own.gates = rows_at(copy.gates, floats(argument(frame, 4)) + n * num_t * num_z * batch, num_t * num_z, batch, b);
      own.c = rows_at(copy.c, floats(argument(frame, 5)) + n * states * batch, num_t * num_h, batch, b);
      const V *d_h = rows_at(d_copy, floats(argument(frame, 6)) + n * states * batch, num_t * num_h, batch, b);
      memset(dh, 0, 2 * num_h * sizeof(V));
      memset(dx, 0, num_t * num_x * sizeof(V));
      for (int t = num_t - 1; t >= 0; t--) {
        const V *gate = own.gates + t * num_z, *c = own.c + t * num_h;
        for (int k = 0; k < num_h; k++) {
          V i = gate[k], f = gate[num_h + k], g = gate[2 * num_h + k], o = gate[3 * num_h + k];
          V tanh_c = hyperbolic(c[k]), d = dh[k] + d_h[t * num_h + k], e = dc[k] + d * o * (1 - tanh_c * tanh_c);
          dz[k] = e * g * i * (1 - i);
          dz[num_h + k] = t ? e * (c - num_h)[k] * f * (1 - f) : (V){0};
          dz[2 * num_h + k] = e * i * (1 - g * g);
          dz[3 * num_h + k] = d * tanh_c * o * (1 - o);
          dc[k] = e * f;
          dh[k] = (V){0};
        }
        if (t) multiply(num_h, dh, w_h, 1, num_h, num_z, dz);
        multiply(num_x, dx + t * num_x, w_x, 1, num_x, num_z, dz);
        transpose(dz_t + t * LANES * z_step, z_step, dz, num_z);
        V *s = seen + t * num_seen;
        memcpy(s, own.x + t * num_x, num_x * sizeof(V));
        if (t) memcpy(s + num_x, own.h + (t - 1) * num_h, num_h * sizeof(V));
        else memset(s + num_x, 0, num_h * sizeof(V));
        s[num_seen - 1] = all(1);
      }
      store_block(floats(answer(frame, 3)) + n * num_t * num_x * batch, dx, num_t * num_x, batch, b);
      for (int t = 0; t < num_t; t++)
        multiply_outer(num_seen, z_step, b || t, dw, z_step, (float *)(seen + t * num_seen), LANES, 1, LANES,
                       dz_t + t * LANES * z_step, z_step);
    }
    float *d_wx = floats(answer(frame, 0)) + n * num_z * num_x, *d_wh = floats(answer(frame, 1)) + n * num_z * num_h;
    float *d_bias = floats(answer(frame, 2)) + n * num_z;
    const float *sums = (float *)dw;
    for (int i = 0; i < num_z; i++) {
      for (int k = 0; k < num_x; k++) d_wx[i * num_x + k] = sums[k * z_step * LANES + i];
      for (int k = 0; k < num_h; k++) d_wh[i * num_h + k] = sums[(num_x + k) * z_step * LANES + i];
      d_bias[i] = sums[(num_seen - 1) * z_step * LANES + i];
    }
  }
  return NULL;
}

/* ---- Adam ---- */

/* The decay of m and its rest, the decay of v and its rest, the step (minus the rate over the bias of m), 1 / the bias
   of v, eps. */
typedef struct { float keep_m, add_m, keep_v, add_v, step, bias_v, eps; } Numbers;

/* (numbers, params..., m..., v..., gradients...) -> (params..., m..., v...); for AMSGrad v is followed by the running
   maximum of its corrected value. Adam's own correction of v is taken out of the root: step / (sqrt(c v) + eps) is
   (step / sqrt(c)) / (sqrt(v) + eps / sqrt(c)). */
static XLA_FFI_Error *run_adam(XLA_FFI_CallFrame *frame, const int is_ams) {
  int kinds = is_ams ? 5 : 4, num = (int)(frame->args.size - 1) / kinds;
  XLA_FFI_Buffer *numbers = argument(frame, 0);
  int64_t num_clients = count(numbers, 1);
  for (int64_t n = 0; n < num_clients; n++) {
    const Numbers s = ((Numbers *)floats(numbers))[n];
    const float outside = is_ams ? 1 : sqrtf(s.bias_v), step = s.step / outside, eps = s.eps / outside;
    for (int k = 0; k < num; k++) {
      int64_t size = count(argument(frame, 1 + k), 0) / num_clients, at = n * size;
      const float *from[5];
      float *to[4];
      for (int j = 0; j < kinds; j++) from[j] = floats(argument(frame, 1 + j * num + k)) + at;
      for (int j = 0; j < kinds - 1; j++) to[j] = floats(answer(frame, j * num + k)) + at;
      for (int64_t i = 0; i < size; i += LANES) {
        int left = size - i < LANES ? (int)(size - i) : LANES;
        V g = load_some(from[kinds - 1] + i, left);
        V m = s.keep_m * load_some(from[1] + i, left) + s.add_m * g;
        V v = s.keep_v * load_some(from[2] + i, left) + s.add_v * g * g, top = v;
        if (is_ams) {
          top = most(load_some(from[3] + i, left), v * s.bias_v);
          store_some(to[3] + i, top, left);
        }
        store_some(to[0] + i, load_some(from[0] + i, left) + step * m * inverse(root(top) + eps), left);
        store_some(to[1] + i, m, left);
        store_some(to[2] + i, v, left);
      }
    }
  }
  return NULL;
}

/* ---- dense layer with PReLU: sums = w x + bias, y = sums where they are positive, else slope * sums ---- */

/* (w, bias, slope, x) -> (y, sums) */
static XLA_FFI_Error *run_dense_forward(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Buffer *w = argument(frame, 0), *x = argument(frame, 3);
  int num_out = axis(w, 2), num_in = axis(w, 1), batch = axis(x, 1);
  V *copy = scratch((size_t)num_in + 2 * num_out);
  if (copy == NULL) return failure(frame, "out of memory in a dense layer");
  V *sum = copy + num_in, *out = sum + num_out;
  int64_t num_clients = count(x, 2);
  for (int64_t n = 0; n < num_clients; n++) {
    const float *bias = floats(argument(frame, 1)) + n * num_out, *slope = floats(argument(frame, 2)) + n * num_out;
    for (int b = 0; b < batch; b += LANES) {
      const V *in = rows_at(copy, floats(x) + n * num_in * batch, num_in, batch, b);
      for (int i = 0; i < num_out; i++) sum[i] = all(bias[i]);
      multiply(num_out, sum, floats(w) + n * num_out * num_in, num_in, 1, num_in, in);
      for (int i = 0; i < num_out; i++) out[i] = pick(sum[i] > 0, sum[i], slope[i] * sum[i]);
      store_block(floats(answer(frame, 0)) + n * num_out * batch, out, num_out, batch, b);
      store_block(floats(answer(frame, 1)) + n * num_out * batch, sum, num_out, batch, b);
    }
  }
  return NULL;
}

/* (w, slope, x, sums, d_y) -> (d_w, d_bias, d_slope, d_x) */
static XLA_FFI_Error *run_dense_backward(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Buffer *w = argument(frame, 0), *x = argument(frame, 2);
  int num_out = axis(w, 2), num_in = axis(w, 1), batch = axis(x, 1), num_blocks = (batch + LANES - 1) / LANES;
  int step = (num_in + LANES - 1) / LANES; /* vectors in a transposed row of x */
  V *copy = scratch((size_t)2 * num_in + 3 * num_out + (size_t)num_blocks * (num_out + LANES * step) + HIGH * step);
  if (copy == NULL) return failure(frame, "out of memory in a dense layer");
  V *dx = copy + num_in, *sum = dx + num_in, *d_bias = sum + num_out, *d_slope = d_bias + num_out;
  V *x_t = d_slope + num_out, *d_sums = x_t + num_blocks * LANES * step, *dw = d_sums + num_blocks * num_out;
  int64_t num_clients = count(x, 2);
  for (int64_t n = 0; n < num_clients; n++) {
    const float *weight = floats(w) + n * num_out * num_in, *slope = floats(argument(frame, 1)) + n * num_out;
    memset(d_bias, 0, 2 * num_out * sizeof(V));
    for (int b = 0; b < num_blocks; b++) {
      V *d = d_sums + b * num_out;
      const V *in = rows_at(copy, floats(x) + n * num_in * batch, num_in, batch, b * LANES);
      load_block(sum, floats(argument(frame, 3)) + n * num_out * batch, num_out, batch, b * LANES);
      load_block(d, floats(argument(frame, 4)) + n * num_out * batch, num_out, batch, b * LANES);
      for (int i = 0; i < num_out; i++) {
        d_slope[i] += pick(sum[i] > 0, (V){0}, d[i] * sum[i]);
        d[i] = pick(sum[i] > 0, d[i], d[i] * slope[i]);
        d_bias[i] += d[i];
      }
      transpose(x_t + b * LANES * step, step, in, num_in);
      memset(dx, 0, num_in * sizeof(V));
      multiply(num_in, dx, weight, 1, num_in, num_out, d);
      store_block(floats(answer(frame, 3)) + n * num_in * batch, dx, num_in, batch, b * LANES);
    }
    for (int i = 0; i < num_out; i += HIGH) {
      int rows = num_out - i < HIGH ? num_out - i : HIGH;
      for (int b = 0; b < num_blocks; b++)
        multiply_outer(rows, step, b > 0, dw, step, (float *)(d_sums + b * num_out + i), LANES, 1, LANES,
                       x_t + b * LANES * step, step);
      for (int k = 0; k < rows; k++)
        memcpy(floats(answer(frame, 0)) + (n * num_out + i + k) * num_in, dw + k * step, num_in * sizeof(float));
    }
    for (int i = 0; i < num_out; i++) {
      floats(answer(frame, 1))[n * num_out + i] = total(d_bias[i]);
      floats(answer(frame, 2))[n * num_out + i] = total(d_slope[i]);
    }
  }
  return NULL;
}

#define HANDLER(name, call) \
  XLA_FFI_Error *name(XLA_FFI_CallFrame *frame) { return is_question(frame) ? NULL : call; }

HANDLER(plfl_lstm, run_lstm_forward(frame, 0))
HANDLER(plfl_lstm_forward, run_lstm_forward(frame, 1))
HANDLER(plfl_lstm_backward, run_lstm_backward(frame))
HANDLER(plfl_dense_forward, run_dense_forward(frame))
HANDLER(plfl_dense_backward, run_dense_backward(frame))
HANDLER(plfl_adam, run_adam(frame, 0))
HANDLER(plfl_adam_ams, run_adam(frame, 1))
