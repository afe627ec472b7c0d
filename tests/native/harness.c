/* Calls the kernels as XLA does, without XLA: with sanitizers, and for any instruction set that this processor has.

   harness CASES: each case is a function's name, whether it must refuse, its arguments and the answers that it must give;
   test_harness.py writes them. Buffers are exactly as large as they are said to be, so that a read or write beside one is
   seen. Prints one line for each case: its name and the largest difference, or what it said. */

#include "kernels.c"

#include <stdio.h>

enum { MOST_BUFFERS = 64, MOST_AXES = 8 };

static const char *said;

static XLA_FFI_Error *keep_message(XLA_FFI_Error_Create_Args *args) {
  said = args->message;
  return (XLA_FFI_Error *)&said;
}

#define ROW(name) {#name, name}
static const struct { const char *name; XLA_FFI_Handler *call; } HANDLERS[] = {
  ROW(plfl_lstm), ROW(plfl_lstm_forward), ROW(plfl_lstm_backward), ROW(plfl_dense_forward), ROW(plfl_dense_backward),
  ROW(plfl_band), ROW(plfl_cut_days), ROW(plfl_days_forward), ROW(plfl_days_backward), ROW(plfl_adam), ROW(plfl_adam_ams),
};

static int32_t next(FILE *file) {
  int32_t x;
  if (fread(&x, sizeof x, 1, file) != 1) exit(3);
  return x;
}

/* A buffer with what the file says of it; the numbers themselves go to `kept`, or into the buffer. */
static XLA_FFI_Buffer *take(FILE *file, float **kept) {
  XLA_FFI_Buffer *buffer = calloc(1, sizeof *buffer);
  buffer->dtype = next(file);
  buffer->rank = next(file);
  buffer->dims = calloc(MOST_AXES, sizeof *buffer->dims);
  size_t size = buffer->dtype == XLA_FFI_DataType_F64 ? sizeof(double) : sizeof(float);
  for (int k = 0; k < buffer->rank; k++) size *= buffer->dims[k] = next(file);
  buffer->data = malloc(size);
  float *to = kept ? *kept = malloc(size) : buffer->data;
  if (fread(to, 1, size, file) != size) exit(3);
  return buffer;
}

static void drop(void **buffers, int num) {
  for (int k = 0; k < num; k++) {
    XLA_FFI_Buffer *buffer = buffers[k];
    free(buffer->data), free(buffer->dims), free(buffer);
  }
}

/* The largest difference relative to the largest expected number; NaN must meet NaN. */
static double apart(const XLA_FFI_Buffer *buffer, const float *expected) {
  double largest = 1, worst = 0;
  int64_t size = count((XLA_FFI_Buffer *)buffer, 0);
  const float *found = buffer->data;
  for (int64_t i = 0; i < size; i++) largest = fmax(largest, fabs(expected[i]));
  for (int64_t i = 0; i < size; i++) {
    if (isnan(expected[i]) != isnan(found[i])) return INFINITY;
    if (!isnan(found[i])) worst = fmax(worst, fabs((double)found[i] - expected[i]) / largest);
  }
  return worst;
}

int main(int argc, char **argv) {
  XLA_FFI_Api api = {.XLA_FFI_Error_Create = keep_message};
  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL) return 2;
  for (int num_cases = next(file); num_cases > 0; num_cases--) {
    void *args[MOST_BUFFERS], *rets[MOST_BUFFERS];
    float *expected[MOST_BUFFERS];
    int which = next(file), num_args = next(file), num_rets = next(file);
    for (int k = 0; k < num_args; k++) args[k] = take(file, NULL);
    for (int k = 0; k < num_rets; k++) rets[k] = take(file, &expected[k]);
    XLA_FFI_CallFrame frame = {.api = &api, .args = {.size = num_args, .args = args}, .rets = {.size = num_rets, .rets = rets}};
    said = NULL;
    HANDLERS[which].call(&frame);
    double worst = 0;
    for (int k = 0; k < num_rets && !said; k++) worst = fmax(worst, apart(rets[k], expected[k]));
    if (said) printf("%s refused: %s\n", HANDLERS[which].name, said);
    else printf("%s %d lanes %.1e\n", HANDLERS[which].name, LANES, worst);
    for (int k = 0; k < num_rets; k++) free(expected[k]);
    drop(args, num_args), drop(rets, num_rets);
  }
  fclose(file);
  return 0;
}
