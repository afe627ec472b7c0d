/* Kernels for the CPU: an LSTM layer, a dense layer, one that looks back at past days, and Adam, called by XLA through
   its foreign-function interface.

   Arrays are feature-major: the batch is the last axis, and LANES values of it make one vector V; those of past days
   have the batch first and are transposed in blocks of LANES. Products keep a tile of up to TILE accumulators in registers
   and broadcast one weight at a time, so that each weight is loaded once per use and nothing is packed. A batch that is
   no multiple of LANES is padded with zeros, block by block.
   Leading axes (clients) are worked through one after the other: one call runs on one core. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#include "layout.h" /* written by native/layout.py: what Python and C must agree on */

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
INLINE V tanh_of(V x) {
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

/* exp(x) for x <= 0, to the last digit or two; below -86 it is that of -86. NaN stays NaN. */
INLINE V exponential(V x) {
  x = most(all(-86.0f), x);
  V shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f; /* rounded; its last bits are those of n */
  x = x - n * 0.693359375f + n * 2.12194440e-4f;
  V p = 1.9875691500e-4f * x + 1.3981999507e-3f;
  p = p * x + 8.3334519073e-3f;
  p = p * x + 4.1665795894e-2f;
  p = p * x + 1.6666665459e-1f;
  p = p * x + 5.0000001201e-1f;
  p = p * x * x + x + 1;
  return p * (V)(((I)shifted << 23) + 0x3f800000);
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
   vectors; with `adds`, to what is in `out`. With `pairs`, a whole vector begins at each place of `a`. */
INLINE void outer(const int H, const int W, const int pairs, int adds, V *out, ptrdiff_t out_step, const float *a,
                  ptrdiff_t down, ptrdiff_t right, int num_l, const V *b, ptrdiff_t step) {
  V acc[HIGH][WIDE];
  UNROLL for (int i = 0; i < H; i++) {
    UNROLL for (int j = 0; j < W; j++) acc[i][j] = adds ? out[i * out_step + j] : (V){0};
  }
  for (int l = 0; l < num_l; l++) {
    V row[WIDE];
    UNROLL for (int j = 0; j < W; j++) row[j] = b[l * step + j];
    UNROLL for (int i = 0; i < H; i++) {
      const float *at = a + i * down + l * right;
      V x = pairs ? *(const V *)at : all(*at);
      UNROLL for (int j = 0; j < W; j++) acc[i][j] += x * row[j];
    }
  }
  UNROLL for (int i = 0; i < H; i++) {
    UNROLL for (int j = 0; j < W; j++) out[i * out_step + j] = acc[i][j];
  }
}

#define OUTER(h, w, pairs) case w: outer(h, w, pairs, adds, out, out_step, a, down, right, num_l, b, step); break;
#define OUTERS(name, h, pairs) \
  NOINLINE void name(int wide, int adds, V *out, ptrdiff_t out_step, const float *a, ptrdiff_t down, ptrdiff_t right, \
                     int num_l, const V *b, ptrdiff_t step) { \
    switch (wide) { \
      OUTER(h, 1, pairs) OUTER(h, 2, pairs) OUTER(h, 3, pairs) \
      OUTER(h, 4, pairs) OUTER(h, 5, pairs) OUTER(h, 6, pairs) \
    } \
  }

OUTERS(outer_high, HIGH, 0)
OUTERS(outer_one, 1, 0)
OUTERS(outer_pairs_high, HIGH, 1)
OUTERS(outer_pairs_one, 1, 1)

/* The same for any number of rows and vectors. */
static void multiply_outer(int num_rows, int num_vectors, int pairs, int adds, V *out, ptrdiff_t out_step,
                           const float *a, ptrdiff_t down, ptrdiff_t right, int num_l, const V *b, ptrdiff_t step) {
  int num_tiles = (num_vectors + WIDE - 1) / WIDE;
  for (int t = 0, j = 0; t < num_tiles; t++) {
    int wide = (num_vectors - j) / (num_tiles - t);
    for (int i = 0, is_high; i < num_rows; i += is_high ? HIGH : 1) {
      is_high = i + HIGH <= num_rows;
      (pairs ? is_high ? outer_pairs_high : outer_pairs_one : is_high ? outer_high : outer_one)(
          wide, adds, out + i * out_step + j, out_step, a + i * down, down, right, num_l, b + j, step);
    }
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

/* The first and the second half of two vectors, interleaved. GCC learnt Clang's word for it with version 12. */
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (I){__VA_ARGS__})
#endif
#if LANES == 16
#define LOW(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define REST(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif LANES == 8
#define LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define REST(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define REST(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#endif

/* x[b][i] becomes x[i][b]. */
INLINE void transpose_square(V *x) {
  V y[LANES];
  UNROLL for (int stage = 1; stage < LANES; stage *= 2) { /* a perfect shuffle, log2(LANES) times */
    UNROLL for (int k = 0; k < LANES / 2; k++) {
      y[2 * k] = LOW(x[k], x[k + LANES / 2]);
      y[2 * k + 1] = REST(x[k], x[k + LANES / 2]);
    }
    UNROLL for (int k = 0; k < LANES; k++) x[k] = y[k];
  }
}

/* to[b][i] = from[i][b]: num_rows vectors become LANES rows of `step` vectors; missing rows are zero. */
static void transpose(V *to, ptrdiff_t step, const V *from, int num_rows) {
  for (int i = 0; i * LANES < num_rows; i++) {
    V x[LANES];
    int left = num_rows - i * LANES;
    UNROLL for (int k = 0; k < LANES; k++) x[k] = k < left ? from[i * LANES + k] : (V){0};
    transpose_square(x);
    UNROLL for (int k = 0; k < LANES; k++) to[k * step + i] = x[k];
  }
}

INLINE int rounded_up(int count) { return (count + LANES - 1) / LANES * LANES; }

/* LANES rows of (batch, columns) from row b on, one vector for each column; rows beyond the batch are zero. There must
   be room for a multiple of LANES. */
static void load_transposed(V *to, const float *from, int num_columns, int batch, int b) {
  int num_rows = batch - b < LANES ? batch - b : LANES;
  for (int c = 0; c < num_columns; c += LANES) {
    const float *at = from + (size_t)b * num_columns + c;
    int left = num_columns - c < LANES ? num_columns - c : LANES, step = num_columns;
    V padded[LANES], x[LANES];
    if (num_rows < LANES || left < LANES) {
      memset(padded, 0, sizeof(padded));
      for (int k = 0; k < num_rows; k++) memcpy(padded + k, at + (size_t)k * num_columns, left * sizeof(float));
      at = (float *)padded, step = LANES;
    }
    UNROLL for (int k = 0; k < LANES; k++) x[k] = *(const U *)(at + (size_t)k * step);
    transpose_square(x);
    UNROLL for (int k = 0; k < LANES; k++) to[c + k] = x[k];
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

/* ---- the boundary: Python can pass anything, so what comes in is held against the shapes that a function expects ----

   A spec names the arguments, then after '>' the answers, by type (f: float32, i: int32) and last axes: a letter stands
   for a size that is the same wherever it appears, 4h for four times it, p+w+4 for a sum. All may have leading axes
   (clients); they are those of the last answer, or 1 where an argument is shared. A '*' leaves the rest to `fault_of_adam`. */

enum { MOST_SIZE = 1 << 30, NUM_LETTERS = 26 };

/* The size that an axis of a spec has, from those of its letters; -1 if one is not known yet. Moves behind it. */
static int64_t size_of(const char **spec, const int64_t *letters) {
  int64_t sum = 0;
  for (int is_known = 1;; (*spec)++) {
    int64_t factor = 1;
    if (**spec >= '0' && **spec <= '9') factor = strtol(*spec, (char **)spec, 10);
    if (**spec >= 'a' && **spec <= 'z') {
      int64_t letter = letters[*(*spec)++ - 'a'];
      is_known &= letter >= 0;
      factor *= letter;
    }
    sum += factor;
    if (**spec != '+') return is_known ? sum : -1;
  }
}

/* The number of axes that a spec names, from its bracket on. */
static int axes_of(const char *spec) {
  int num = spec[1] != ']';
  for (; *spec != ']'; spec++) num += *spec == ',';
  return num;
}

static int may_lead(const XLA_FFI_Buffer *buffer, int rank, const XLA_FFI_Buffer *last, int last_rank) {
  if (buffer->rank == rank || last_rank < 0) return 1;
  if (buffer->rank - rank != last->rank - last_rank) return 0;
  for (int k = 0; k < buffer->rank - rank; k++)
    if (buffer->dims[k] != last->dims[k] && buffer->dims[k] != 1) return 0;
  return 1;
}

/* Goes through all buffers: `binds` takes single letters from their axes, else sizes are compared. */
static const char *walk(XLA_FFI_CallFrame *frame, const char *spec, int64_t *letters, int binds, int last_rank) {
  int64_t k = 0, num = frame->args.size;
  XLA_FFI_Buffer *last = answer(frame, (int)frame->rets.size - 1);
  for (void **buffers = frame->args.args; *spec;) {
    if (*spec == ' ') { spec++; continue; }
    if (*spec == '*') return NULL;
    if (*spec == '>') {
      if (k != num) return "too many arguments";
      spec++, k = 0, num = frame->rets.size, buffers = frame->rets.rets;
      continue;
    }
    if (k == num) return "too few arguments or answers";
    XLA_FFI_Buffer *buffer = buffers[k++];
    if (buffer->dtype != (*spec++ == 'f' ? XLA_FFI_DataType_F32 : XLA_FFI_DataType_S32)) return "another type of number";
    int rank = axes_of(spec);
    if (buffer->rank < rank || !may_lead(buffer, rank, last, last_rank)) return "another number of axes, or of clients";
    for (int i = 0; i < rank; i++) {
      int64_t dim = buffer->dims[buffer->rank - rank + i];
      const char *axis = ++spec;
      int64_t expected = size_of(&spec, letters);
      if (dim < 0 || dim > MOST_SIZE) return "an axis that is too long";
      if (binds && expected < 0 && spec == axis + 1) letters[*axis - 'a'] = dim;
      if (!binds && expected != dim) return "an axis of another size";
    }
    spec += rank ? 1 : 2;
  }
  return k == num ? NULL : "too many answers";
}

/* What is wrong with a call, or NULL. Sizes may be named before the argument that has them: so in two passes. */
static const char *fault_of(XLA_FFI_CallFrame *frame, const char *spec) {
  int64_t letters[NUM_LETTERS];
  for (int k = 0; k < NUM_LETTERS; k++) letters[k] = -1;
  if (frame->rets.size == 0) return "no answers";
  int last_rank = axes_of(strrchr(spec, '['));
  if (strchr(spec, '*')) last_rank = -1; /* answers of any rank: they say nothing of the clients */
  const char *fault = walk(frame, spec, letters, 1, last_rank);
  return fault ? fault : walk(frame, spec, letters, 0, last_rank);
}

/* ---- LSTM: gates in the order i, f, g, o; h and c start at zero ---- */

/* One block of the batch: inputs x, states h and c, and the four gates, each for all times. */
typedef struct { V *x, *h, *c, *gates; } Block;

static Block block_at(V *memory, int num_t, int num_x, int num_h) {
  V *h = memory + num_t * num_x, *c = h + num_t * num_h;
  return (Block){memory, h, c, c + num_t * num_h};
}

static size_t block_size(int num_t, int num_x, int num_h) { return (size_t)num_t * (num_x + 6 * num_h); }

INLINE V sigmoid(V x) { return 0.5f + 0.5f * tanh_of(0.5f * x); }

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
        for (int i = 2 * num_h; i < 3 * num_h; i++) z[i] = tanh_of(z[i]);
        for (int i = 3 * num_h; i < num_z; i++) z[i] = sigmoid(z[i]);
        for (int i = 0; i < num_h; i++) {
          c[i] = z[i] * z[2 * num_h + i];
          if (t) c[i] += z[num_h + i] * (c - num_h)[i];
          h[i] = z[3 * num_h + i] * tanh_of(c[i]);
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
          V tanh_c = tanh_of(c[k]), d = dh[k] + d_h[t * num_h + k], e = dc[k] + d * o * (1 - tanh_c * tanh_c);
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
        multiply_outer(num_seen, z_step, 0, b || t, dw, z_step, (float *)(seen + t * num_seen), LANES, 1, LANES,
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

/* Every param has moments and a gradient of its own size, and all have rows for the same clients. */
static const char *fault_of_adam(XLA_FFI_CallFrame *frame, int kinds, int num) {
  int64_t num_clients = count(argument(frame, 0), 1);
  if (frame->args.size != 1 + (int64_t)kinds * num || frame->rets.size != (int64_t)(kinds - 1) * num)
    return "another number of arguments";
  for (int k = 0; k < (2 * kinds - 1) * num; k++) {
    XLA_FFI_Buffer *buffer = k < kinds * num ? argument(frame, 1 + k) : answer(frame, k - kinds * num);
    int64_t size = count(buffer, 0);
    if (buffer->dtype != XLA_FFI_DataType_F32) return "another type of number";
    if (size != count(argument(frame, 1 + k % num), 0)) return "a param and its moments of different sizes";
    if (num_clients == 0 || size % num_clients) return "another number of clients";
  }
  return NULL;
}

/* (numbers, params..., m..., v..., gradients...) -> (params..., m..., v...); for AMSGrad v is followed by the running
   maximum of its corrected value. Adam's own correction of v is taken out of the root: step / (sqrt(c v) + eps) is
   (step / sqrt(c)) / (sqrt(v) + eps / sqrt(c)). */
static XLA_FFI_Error *run_adam(XLA_FFI_CallFrame *frame, const int is_ams) {
  int kinds = is_ams ? 5 : 4, num = (int)(frame->args.size - 1) / kinds;
  const char *fault = fault_of_adam(frame, kinds, num);
  if (fault) return failure(frame, fault);
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
        multiply_outer(rows, step, 0, b > 0, dw, step, (float *)(d_sums + b * num_out + i), LANES, 1, LANES,
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

/* ---- looking back at past days: what `forecast.analog` calls `plain_look_back` ---- */

/* One block of pairs, and the params of one client. The scorer is the first layer above minus the size of the
   distances, both of which see the likeness; a row of `sums` begins as its products, and ends as the slopes of the SiLU
   and the days' weights. */
typedef struct {
  int num_days, num_seen, width, num_heads, num_rows;
  int data; /* the argument that is the likeness; the changes and what is known come after it */
  const float *bias, *mix;
  float *scorer;                    /* (rows, seen) */
  V *likeness, *changes, *is_known; /* (days, seen), (days, 2), (days) */
  V *sums, *inner, *pooled, any;    /* (days, rows), (days, width), (heads, 4) */
  V *free;                          /* memory behind */
} Days;

static Days days_of(XLA_FFI_CallFrame *frame, int data) {
  XLA_FFI_Buffer *weight = argument(frame, 0), *mix = argument(frame, 2), *likeness = argument(frame, data);
  Days own = {.num_days = axis(likeness, 2), .num_seen = axis(weight, 1), .width = axis(weight, 2),
              .num_heads = axis(mix, 2), .num_rows = axis(weight, 2) + axis(mix, 2), .data = data};
  return own;
}

/* Takes scratch memory, with `more` vectors behind; 0 if there is none. */
static int take_memory(Days *own, size_t more) {
  size_t num_days = own->num_days, scorer = rounded_up(own->num_rows * own->num_seen) / LANES;
  size_t likeness = rounded_up(own->num_days * own->num_seen), changes = rounded_up(2 * own->num_days);
  size_t is_known = rounded_up(own->num_days), sums = num_days * own->num_rows, inner = num_days * own->width;
  V *memory = scratch(scorer + likeness + changes + is_known + sums + inner + 4 * own->num_heads + more);
  if (memory == NULL) return 0;
  own->scorer = (float *)memory;
  own->likeness = memory + scorer;
  own->changes = own->likeness + likeness;
  own->is_known = own->changes + changes;
  own->sums = own->is_known + is_known;
  own->inner = own->sums + sums;
  own->pooled = own->inner + inner;
  own->free = own->pooled + 4 * own->num_heads;
  return 1;
}

/* The params of client n. */
static void take_params(Days *own, XLA_FFI_CallFrame *frame, int64_t n) {
  int num_first = own->width * own->num_seen, num_distances = own->num_heads * own->num_seen;
  const float *distance = floats(argument(frame, 3)) + n * num_distances;
  memcpy(own->scorer, floats(argument(frame, 0)) + n * num_first, num_first * sizeof(float));
  for (int i = 0; i < num_distances; i++) own->scorer[num_first + i] = -fabsf(distance[i]);
  own->bias = floats(argument(frame, 1)) + n * own->width;
  own->mix = floats(argument(frame, 2)) + n * own->num_heads * own->width;
}

/* Weigh the past days of the pairs from b on, and pool what they did next. */
static void weigh_days(Days *own, XLA_FFI_CallFrame *frame, int64_t n, int batch, int b) {
  int num_days = own->num_days, num_seen = own->num_seen, width = own->width, num_rows = own->num_rows;
  int64_t at = n * batch * num_days;
  load_transposed(own->likeness, floats(argument(frame, own->data)) + at * num_seen, num_days * num_seen, batch, b);
  load_transposed(own->changes, floats(argument(frame, own->data + 1)) + at * 2, num_days * 2, batch, b);
  load_transposed(own->is_known, floats(argument(frame, own->data + 2)) + at, num_days, batch, b);
  own->any = (V){0};
  for (int d = 0; d < num_days; d++) {
    V *sum = own->sums + d * num_rows, *inner = own->inner + d * width;
    for (int i = 0; i < width; i++) sum[i] = all(own->bias[i]);
    for (int i = width; i < num_rows; i++) sum[i] = (V){0};
    multiply(num_rows, sum, own->scorer, num_seen, 1, num_seen, own->likeness + d * num_seen);
    for (int i = 0; i < width; i++) {
      V gate = sigmoid(sum[i]);
      inner[i] = sum[i] * gate;
      sum[i] = gate + inner[i] * (1 - gate);
    }
    multiply(own->num_heads, sum + width, own->mix, width, 1, width, inner);
    for (int i = width; i < num_rows; i++) sum[i] = pick(own->is_known[d] > 0, sum[i], all(UNKNOWN));
    own->any = most(own->any, own->is_known[d]);
  }
  for (int i = 0; i < own->num_heads; i++) {
    V *weight = own->sums + width + i, top = weight[0], sum = {0}, mean[2] = {{0}}, variance[2] = {{0}};
    for (int d = 1; d < num_days; d++) top = most(top, weight[d * num_rows]);
    for (int d = 0; d < num_days; d++) {
      V x = weight[d * num_rows] = exponential(weight[d * num_rows] - top);
      sum += x;
      for (int k = 0; k < 2; k++) mean[k] += x * own->changes[2 * d + k];
    }
    sum = 1 / sum;
    for (int k = 0; k < 2; k++) mean[k] *= sum;
    for (int d = 0; d < num_days; d++) {
      weight[d * num_rows] *= sum;
      for (int k = 0; k < 2; k++) {
        V x = own->changes[2 * d + k] - mean[k];
        variance[k] += weight[d * num_rows] * x * x;
      }
    }
    for (int k = 0; k < 2; k++) {
      own->pooled[4 * i + k] = mean[k];
      own->pooled[4 * i + 2 + k] = root(variance[k] + LEAST_VARIANCE);
    }
  }
}

/* (weight, bias, mix, distance, likeness, changes, is_known) -> (means and spreads) */
static XLA_FFI_Error *run_days_forward(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Buffer *likeness = argument(frame, 4);
  int num_out = axis(answer(frame, 0), 1), step = rounded_up(num_out) / LANES, batch = axis(likeness, 3);
  Days own = days_of(frame, 4);
  if (!take_memory(&own, LANES * step)) return failure(frame, "out of memory in the layer of past days");
  int64_t num_clients = count(likeness, 3);
  for (int64_t n = 0; n < num_clients; n++) {
    float *out = floats(answer(frame, 0)) + n * batch * num_out;
    take_params(&own, frame, n);
    for (int b = 0; b < batch; b += LANES) {
      weigh_days(&own, frame, n, batch, b);
      for (int i = 0; i < num_out; i++) own.pooled[i] *= own.any;
      transpose(own.free, step, own.pooled, num_out);
      for (int k = 0; k < LANES && b + k < batch; k++)
        memcpy(out + (size_t)(b + k) * num_out, own.free + k * step, num_out * sizeof(float));
    }
  }
  return NULL;
}

/* Gradients of the params, for each lane, and room to add them up. */
typedef struct {
  V *scorer, *mix, *bias, *inner, *transposed;
  int num_params, step;
} Pull;

static size_t pull_size(const Days *own) {
  int num_params = own->num_rows * own->num_seen + own->num_heads * own->width + own->width;
  return own->width + num_params + rounded_up(num_params);
}

static Pull pull_at(const Days *own, V *memory) {
  Pull pull = {.inner = memory, .scorer = memory + own->width};
  pull.mix = pull.scorer + own->num_rows * own->num_seen;
  pull.bias = pull.mix + own->num_heads * own->width;
  pull.transposed = pull.bias + own->width;
  pull.num_params = (int)(pull.transposed - pull.scorer);
  pull.step = rounded_up(pull.num_params) / LANES;
  return pull;
}

/* The way back of `weigh_days`, whose results are taken apart: adds to the gradients. */
static void pull_days(Days *own, Pull *pull, const V *d_out) {
  int num_days = own->num_days, num_seen = own->num_seen, width = own->width, num_rows = own->num_rows;
  for (int i = 0; i < own->num_heads; i++) {
    const V *mean = own->pooled + 4 * i, *spread = mean + 2, *d = d_out + 4 * i;
    V d_mean[2], d_variance[2], variance[2], *weight = own->sums + width + i;
    for (int k = 0; k < 2; k++) {
      d_mean[k] = d[k] * own->any;
      d_variance[k] = 0.5f * d[2 + k] * own->any * inverse(spread[k]);
      variance[k] = spread[k] * spread[k] - LEAST_VARIANCE;
    }
    for (int j = 0; j < num_days; j++) { /* a weight becomes the gradient of its score */
      V slope = {0};
      for (int k = 0; k < 2; k++) {
        V x = own->changes[2 * j + k] - mean[k];
        slope += d_mean[k] * x + d_variance[k] * (x * x - variance[k]);
      }
      weight[j * num_rows] = pick(own->is_known[j] > 0, weight[j * num_rows] * slope, (V){0});
    }
  }
  for (int j = 0; j < num_days; j++) {
    V *sum = own->sums + j * num_rows;
    memset(pull->inner, 0, width * sizeof(V));
    multiply(width, pull->inner, own->mix, 1, width, own->num_heads, sum + width);
    for (int i = 0; i < width; i++) pull->bias[i] += sum[i] *= pull->inner[i];
  }
  multiply_outer(num_rows, num_seen, 1, 1, pull->scorer, num_seen, (float *)own->sums, LANES, num_rows * LANES,
                 num_days, own->likeness, num_seen);
  multiply_outer(own->num_heads, width, 1, 1, pull->mix, width, (float *)(own->sums + width), LANES, num_rows * LANES,
                 num_days, own->inner, width);
}

/* The gradients of client n, added up over the lanes, into the answers from `first` on. */
static void store_pull(const Days *own, const Pull *pull, XLA_FFI_CallFrame *frame, int first, int64_t n) {
  int num_seen = own->num_seen, width = own->width, num_heads = own->num_heads, num_mix = num_heads * width;
  int step = pull->step;
  V *transposed = pull->transposed;
  transpose(transposed, step, pull->scorer, pull->num_params);
  for (int k = 1; k < LANES; k++)
    for (int i = 0; i < step; i++) transposed[i] += transposed[k * step + i];
  const float *total = (float *)transposed, *distance = floats(argument(frame, 3)) + n * num_heads * num_seen;
  memcpy(floats(answer(frame, first)) + n * width * num_seen, total, width * num_seen * sizeof(float));
  total += width * num_seen;
  for (int i = 0; i < num_heads * num_seen; i++)
    floats(answer(frame, first + 3))[n * num_heads * num_seen + i] = total[i] * ((distance[i] < 0) - (distance[i] > 0));
  total += num_heads * num_seen;
  memcpy(floats(answer(frame, first + 2)) + n * num_mix, total, num_mix * sizeof(float));
  memcpy(floats(answer(frame, first + 1)) + n * width, total + num_mix, width * sizeof(float));
}

/* (weight, bias, mix, distance, likeness, changes, is_known, d_out) -> (d_weight, d_bias, d_mix, d_distance) */
static XLA_FFI_Error *run_days_backward(XLA_FFI_CallFrame *frame) {
  int batch = axis(argument(frame, 4), 3), num_out = axis(argument(frame, 7), 1);
  Days own = days_of(frame, 4);
  if (!take_memory(&own, rounded_up(num_out) + pull_size(&own)))
    return failure(frame, "out of memory in the layer of past days");
  V *d_out = own.free;
  Pull pull = pull_at(&own, d_out + rounded_up(num_out));
  int64_t num_clients = count(argument(frame, 4), 3);
  for (int64_t n = 0; n < num_clients; n++) {
    take_params(&own, frame, n);
    memset(pull.scorer, 0, pull.num_params * sizeof(V));
    for (int b = 0; b < batch; b += LANES) {
      weigh_days(&own, frame, n, batch, b);
      load_transposed(d_out, floats(argument(frame, 7)) + n * batch * num_out, num_out, batch, b);
      pull_days(&own, &pull, d_out);
    }
    store_pull(&own, &pull, frame, 0, n);
  }
  return NULL;
}

/* ---- the forecaster's loss and its gradient: `forecast.analog` and the quantile loss in one pass ---- */

/* One weight's gradient (rows, columns) of client n: products of what came back, (rows, pairs) as floats, and of what
   went in, (pairs, step) as vectors. */
static void store_products(float *to, V *room, int rows, int columns, const float *back, const V *in, int step, int num) {
  multiply_outer(rows, step, 0, 0, room, step, back, num, 1, num, in, step);
  for (int i = 0; i < rows; i++) memcpy(to + (size_t)i * columns, room + (size_t)i * step, columns * sizeof(float));
}

static void store_sums(float *to, const V *back, int rows, int num_blocks) {
  for (int i = 0; i < rows; i++) {
    V sum = {0};
    for (int b = 0; b < num_blocks; b++) sum += back[i * num_blocks + b];
    to[i] = total(sum);
  }
}

/* (params of the past days, weight and bias of each layer and of the head, skip, features, likeness, changes, is_known,
   targets, shares, levels, worths) -> (loss, gradients of the params). A pair counts by its share, a quantile by its
   worth. Forward and backward, block by block; products over the whole batch at the end. */
static XLA_FFI_Error *run_band(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Buffer *features = argument(frame, BAND_FEATURES);
  int batch = axis(features, 2), num_seen = axis(features, 1), num_out = axis(argument(frame, BAND_HEAD_WEIGHT), 2);
  int width = axis(argument(frame, BAND_BODY_0_WEIGHT), 2), num_in = axis(argument(frame, BAND_BODY_0_WEIGHT), 1);
  int num_blocks = rounded_up(batch) / LANES, padded = num_blocks * LANES;
  int in_step = rounded_up(num_in) / LANES, step = rounded_up(width) / LANES;
  Days own = days_of(frame, BAND_LIKENESS);
  size_t num_x = rounded_up(num_in) > rounded_up(num_seen) ? rounded_up(num_in) : rounded_up(num_seen);
  size_t room = (size_t)(width > num_out ? width : num_out) * (in_step > step ? in_step : step);
  size_t needed = num_x + 3 * NUM_LAYERS * (size_t)width + 2 * (size_t)num_out + num_in + pull_size(&own) + room +
                  (size_t)padded * (in_step + NUM_LAYERS * step) + (size_t)num_blocks * (NUM_LAYERS * width + num_out);
  if (!take_memory(&own, needed)) return failure(frame, "out of memory in the forecaster's layers");
  V *x = own.free, *z[NUM_LAYERS], *h[NUM_LAYERS], *slope[NUM_LAYERS], *x_rows, *h_rows[NUM_LAYERS], *back[NUM_LAYERS];
  V *next = x + num_x;
  for (int k = 0; k < NUM_LAYERS; k++) {
    z[k] = next, h[k] = z[k] + width, slope[k] = h[k] + width;
    next = slope[k] + width;
  }
  V *out = next, *d_out = out + num_out, *d_pooled = d_out + num_out;
  Pull pull = pull_at(&own, d_pooled + num_in);
  x_rows = d_pooled + num_in + pull_size(&own);
  next = x_rows + (size_t)padded * in_step;
  for (int k = 0; k < NUM_LAYERS; k++) h_rows[k] = next, next += (size_t)padded * step;
  for (int k = 0; k < NUM_LAYERS; k++) back[k] = next, next += (size_t)num_blocks * width;
  V *back_out = next, *products = back_out + (size_t)num_blocks * num_out;
  int64_t num_clients = count(features, 2);
  for (int64_t n = 0; n < num_clients; n++) {
    const float *weight[NUM_LAYERS], *bias[NUM_LAYERS];
    for (int k = 0; k < NUM_LAYERS; k++) {
      weight[k] = floats(argument(frame, BAND_BODY_0_WEIGHT + 2 * k)) + n * width * (k ? width : num_in);
      bias[k] = floats(argument(frame, BAND_BODY_0_WEIGHT + 2 * k + 1)) + n * width;
    }
    const float *head = floats(argument(frame, BAND_HEAD_WEIGHT)) + n * num_out * width;
    const float *head_bias = floats(argument(frame, BAND_HEAD_WEIGHT + 1)) + n * num_out;
    const float *skip = floats(argument(frame, BAND_SKIP_WEIGHT)) + n * num_out * num_in;
    const float *levels = floats(argument(frame, BAND_LEVELS)) + n * num_out;
    const float *worths = floats(argument(frame, BAND_WORTHS)) + n * num_out;
    V loss = {0};
    take_params(&own, frame, n);
    memset(pull.scorer, 0, pull.num_params * sizeof(V));
    for (int b = 0; b < num_blocks; b++) {
      int at = b * LANES, left = batch - at;
      load_transposed(x, floats(features) + n * batch * num_seen, num_seen, batch, at);
      weigh_days(&own, frame, n, batch, at);
      for (int i = 0; i < num_in - num_seen; i++) x[num_seen + i] = own.pooled[i] * own.any;
      transpose(x_rows + (size_t)at * in_step, in_step, x, num_in);
      for (int k = 0; k < NUM_LAYERS; k++) {
        for (int i = 0; i < width; i++) z[k][i] = all(bias[k][i]);
        multiply(width, z[k], weight[k], k ? width : num_in, 1, k ? width : num_in, k ? h[k - 1] : x);
        for (int i = 0; i < width; i++) {
          V gate = sigmoid(z[k][i]), inner = z[k][i] * gate;
          slope[k][i] = gate + inner * (1 - gate);
          h[k][i] = k ? h[k - 1][i] + inner : inner;
        }
        transpose(h_rows[k] + (size_t)at * step, step, h[k], width);
      }
      for (int i = 0; i < num_out; i++) out[i] = all(head_bias[i]);
      multiply(num_out, out, head, width, 1, width, h[NUM_LAYERS - 1]);
      multiply(num_out, out, skip, num_in, 1, num_in, x);
      V target = load_some(floats(argument(frame, BAND_TARGETS)) + n * batch + at, left);
      V share = load_some(floats(argument(frame, BAND_SHARES)) + n * batch + at, left);
      for (int i = 0; i < num_out; i++) {
        V error = target - out[i], worth = share * worths[i];
        loss += worth * most(levels[i] * error, (levels[i] - 1) * error);
        V step_up = pick(error > 0, all(levels[i]), pick(error < 0, all(levels[i] - 1), all(levels[i] - 0.5f)));
        d_out[i] = back_out[i * num_blocks + b] = -worth * step_up;
      }
      V *d_h = z[NUM_LAYERS - 1]; /* no longer needed */
      memset(d_h, 0, width * sizeof(V));
      multiply(width, d_h, head, 1, width, num_out, d_out);
      for (int k = NUM_LAYERS - 1; k >= 0; k--) {
        V *d_z = slope[k];
        for (int i = 0; i < width; i++) back[k][i * num_blocks + b] = d_z[i] *= d_h[i];
        if (k > 0) multiply(width, d_h, weight[k], 1, width, width, d_z);
      }
      memset(d_pooled, 0, (num_in - num_seen) * sizeof(V));
      multiply(num_in - num_seen, d_pooled, weight[0] + num_seen, 1, num_in, width, slope[0]);
      multiply(num_in - num_seen, d_pooled, skip + num_seen, 1, num_in, num_out, d_out);
      pull_days(&own, &pull, d_pooled);
    }
    floats(answer(frame, 0))[n] = total(loss);
    store_pull(&own, &pull, frame, 1, n);
    for (int k = 0; k < NUM_LAYERS; k++) {
      int columns = k ? width : num_in;
      float *to = floats(answer(frame, 1 + BAND_BODY_0_WEIGHT + 2 * k)) + n * width * columns;
      store_products(to, products, width, columns, (float *)back[k], k ? h_rows[k - 1] : x_rows, k ? step : in_step, padded);
      store_sums(floats(answer(frame, 2 + BAND_BODY_0_WEIGHT + 2 * k)) + n * width, back[k], width, num_blocks);
    }
    store_products(floats(answer(frame, 1 + BAND_HEAD_WEIGHT)) + n * num_out * width, products, num_out, width, (float *)back_out,
                   h_rows[NUM_LAYERS - 1], step, padded);
    store_sums(floats(answer(frame, 2 + BAND_HEAD_WEIGHT)) + n * num_out, back_out, num_out, num_blocks);
    store_products(floats(answer(frame, 1 + BAND_SKIP_WEIGHT)) + n * num_out * num_in, products, num_out, num_in, (float *)back_out,
                   x_rows, in_step, padded);
  }
  return NULL;
}

/* ---- the past days of pairs of origin and lead: what `forecast.aligned` calls `plain_cut_days` ---- */

/* Client n's part of an argument; of those that all clients share there is but one. */
static const void *part_of(XLA_FFI_CallFrame *frame, int k, int rank, int64_t n) {
  XLA_FFI_Buffer *shape = answer(frame, 2), *buffer = argument(frame, k);
  int num_leading = (int)shape->rank - 2;
  int64_t at = 0, stride = count(buffer, 0) / count(buffer, rank), step = stride;
  for (int i = num_leading - 1; i >= 0; i--) {
    int64_t size = buffer->rank > rank ? buffer->dims[i] : 1;
    if (size > 1) at += n % shape->dims[i] * step;
    step *= size;
    n /= shape->dims[i];
  }
  return (const float *)buffer->data + at;
}

/* One client's series and the calendar of its zone. */
typedef struct {
  const float *readings, *calendar;
  int num_readings, width, num_times, columns;
} Own;

INLINE V gather(const float *from, I index) {
#if defined(__AVX512F__)
  return (V)_mm512_i32gather_ps((__m512i)index, from, 4);
#elif defined(__AVX2__)
  return (V)_mm256_i32gather_ps(from, (__m256i)index, 4);
#else
  V x;
  for (int i = 0; i < LANES; i++) x[i] = from[index[i]];
  return x;
#endif
}

INLINE I is_finite(V x) { return x - x == 0; }
INLINE V size(V x) { return (V)((I)x & 0x7fffffff); }
INLINE V one_if(I mask) { return (V)(mask & (I)all(1)); }
INLINE I within(I time, int num) {
  I is_late = time > num - 1;
  time = (is_late & (num - 1)) | (~is_late & time);
  return time & ~(time < 0);
}
INLINE V reading(const Own *own, I time, int column) {
  return gather(own->readings + column, within(time, own->num_readings) * own->width);
}
INLINE V load_at(const Own *own, I time) { return pick(time < 0, all(NAN), reading(own, time, 0)); }
INLINE V date(const Own *own, I time, int column) {
  return gather(own->calendar + column, within(time, own->num_times) * own->columns);
}
INLINE I is_off(const Own *own, I time) { return (date(own, time, 1) > FRIDAY) | (date(own, time, 2) > 0); }

/* A load before `time` relative to a level; 0 where unknown. */
INLINE V change_at(const Own *own, I time, V level) {
  V change = load_at(own, time) - level;
  return pick(is_finite(change), change, (V){0});
}

/* Vectors as rows of floats: those of the pairs from b on, in an array of (batch, num). */
static void store_transposed(float *to, V *room, const V *from, int num, int batch, int b) {
  int step = rounded_up(num) / LANES;
  transpose(room, step, from, num);
  for (int k = 0; k < LANES && b + k < batch; k++)
    memcpy(to + (size_t)(b + k) * num, room + k * step, num * sizeof(float));
}

/* (readings, calendars, zone, origins, leads, offsets, recency) -> (likeness, changes, is_known) */
static XLA_FFI_Error *run_cut_days(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Buffer *readings = argument(frame, 0), *calendars = argument(frame, 1), *shape = answer(frame, 2);
  int batch = axis(shape, 2), num_days = axis(shape, 1), num_path = axis(argument(frame, 5), 1) - 1;
  int num_seen = axis(answer(frame, 0), 1), num_rows = num_days * num_seen;
  Own own = {.num_readings = axis(readings, 2), .width = axis(readings, 1), .num_times = axis(calendars, 2),
             .columns = axis(calendars, 1)};
  V *now = scratch((size_t)num_path + own.width + num_rows + 3 * num_days + LANES * (rounded_up(num_rows) / LANES));
  if (now == NULL) return failure(frame, "out of memory while cutting past days");
  V *weather = now + num_path, *seen = weather + own.width, *changes = seen + num_rows, *is_known = changes + 2 * num_days;
  V *room = is_known + num_days;
  int64_t num_clients = count(shape, 2);
  for (int64_t n = 0; n < num_clients; n++) {
    const int32_t *origins = part_of(frame, 3, 1, n), *leads = part_of(frame, 4, 1, n), *path = part_of(frame, 5, 1, n);
    const float *recency = part_of(frame, 6, 1, n), *zones = part_of(frame, 1, 3, n);
    own.readings = part_of(frame, 0, 2, n);
    const int32_t zone = *(const int32_t *)part_of(frame, 2, 0, n);
    if (zone < 0 || zone >= axis(calendars, 3)) return failure(frame, "a zone that has no calendar");
    own.calendar = zones + (size_t)zone * own.num_times * own.columns;
    const int day = *path++;
    for (int b = 0; b < batch; b += LANES) {
      I origin, lead;
      for (int k = 0; k < LANES; k++) { /* beyond the batch the last pair stands in */
        int pair = b + k < batch ? b + k : batch - 1;
        origin[k] = origins[pair], lead[k] = leads[pair];
      }
      const V base = load_at(&own, origin), weekday = date(&own, origin + lead, 1);
      const V unit = 1 / reading(&own, origin, own.width - 1); /* of the swing */
      const I off = is_off(&own, origin), off_then = is_off(&own, origin + lead);
      const V share = __builtin_convertvector(lead, V) / (float)day;
      for (int p = 0; p < num_path; p++) now[p] = change_at(&own, origin - path[p], base);
      for (int k = 1; k < own.width - 1; k++) weather[k] = reading(&own, origin, k);
      for (int d = 0; d < num_days; d++) {
        const I then = origin - (d + 1) * day, arrival = then + lead;
        V *to = seen + d * num_seen, level = load_at(&own, then), reached = load_at(&own, arrival);
        const I known = is_finite(level) & is_finite(reached) & (arrival <= origin);
        level = pick(known, level, base);
        reached = pick(known, reached, base);
        for (int p = 0; p < num_path; p++) to[p] = size(now[p] - change_at(&own, then - path[p], level)) * unit;
        to += num_path;
        to[FACT_LEVEL] = size(base - level) * unit;
        to[FACT_WEEKDAY] = one_if(size(weekday - date(&own, arrival, 1)) < SAME_DAY);
        to[FACT_OFF_THEN] = one_if(off_then ^ is_off(&own, arrival));
        to[FACT_OFF_NOW] = one_if(off ^ is_off(&own, then));
        to[FACT_RECENCY] = all(recency[d]);
        to[FACT_YESTERDAY] = all(d == 0);
        to[FACT_LEAD] = share;
        for (int k = 1; k < own.width - 1; k++) to[NUM_FACTS - 1 + k] = size(weather[k] - reading(&own, then, k));
        changes[2 * d] = (reached - level) * unit;
        changes[2 * d + 1] = (reached - base) * unit;
        is_known[d] = one_if(known);
      }
      store_transposed(floats(answer(frame, 0)) + n * batch * num_rows, room, seen, num_rows, batch, b);
      store_transposed(floats(answer(frame, 1)) + n * batch * 2 * num_days, room, changes, 2 * num_days, batch, b);
      store_transposed(floats(shape) + n * batch * num_days, room, is_known, num_days, batch, b);
    }
  }
  return NULL;
}

#define HANDLER(name, spec, call) \
  XLA_FFI_Error *name(XLA_FFI_CallFrame *frame) { \
    if (is_question(frame)) return NULL; \
    const char *fault = fault_of(frame, spec); \
    return fault ? failure(frame, fault) : call; \
  }
#define DAYS "f[s,l] f[s] f[h,s] f[h,l] "
#define BODY "f[w,v+4h] f[w] f[w,w] f[w] f[w,w] f[w] f[o,w] f[o] f[o,v+4h] "
#define PAST "f[b,d,l] f[b,d,2] f[b,d] "

HANDLER(plfl_lstm, "f[4h,x] f[4h,h] f[4h] f[t,x,b] > f[t,h,b]", run_lstm_forward(frame, 0))
HANDLER(plfl_lstm_forward, "f[4h,x] f[4h,h] f[4h] f[t,x,b] > f[t,h,b] f[t,4h,b] f[t,h,b]", run_lstm_forward(frame, 1))
HANDLER(plfl_lstm_backward, "f[4h,x] f[4h,h] f[t,x,b] f[t,h,b] f[t,4h,b] f[t,h,b] f[t,h,b] > "
        "f[4h,x] f[4h,h] f[4h] f[t,x,b]", run_lstm_backward(frame))
HANDLER(plfl_dense_forward, "f[o,i] f[o] f[o] f[i,b] > f[o,b] f[o,b]", run_dense_forward(frame))
HANDLER(plfl_dense_backward, "f[o,i] f[o] f[i,b] f[o,b] f[o,b] > f[o,i] f[o] f[o] f[i,b]", run_dense_backward(frame))
HANDLER(plfl_band, DAYS BODY "f[b,v] " PAST "f[b] f[b] f[o] f[o] > f[] " DAYS BODY, run_band(frame))
HANDLER(plfl_cut_days, "f[r,w] f[z,c,3] i[] i[b] i[b] i[p] f[d] > f[b,d," LIKENESSES "] f[b,d,2] f[b,d]", run_cut_days(frame))
HANDLER(plfl_days_forward, DAYS PAST "> f[b,4h]", run_days_forward(frame))
HANDLER(plfl_days_backward, DAYS PAST "f[b,4h] > " DAYS, run_days_backward(frame))
HANDLER(plfl_adam, "f[7] *", run_adam(frame, 0))
HANDLER(plfl_adam_ams, "f[7] *", run_adam(frame, 1))
