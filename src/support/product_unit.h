/* The C interface between a unit of products (a shared object made from templates) and the runtime.
 * Read by both compilers, so plain C. */
#pragma once
#include <stddef.h>

#define HEDDLE_UNIT_INTERFACE 1

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix on the GPU: element (b, i, j) lies at data + b*batch + i*row + j*column elements. */
typedef struct {
  unsigned long long data;
  long long batch, row, column;
} HeddleMatrix;
/* What one product is called with: `matrices` are its operands, its result, then those that its
 * epilogue reads and writes, as its text numbers them. */
typedef struct {
  long long batches, rows, columns, depth;
  const HeddleMatrix* matrices;
  int count;
} HeddleProduct;

/* Codes of the functions; anything else is an error that `message` explains. */
enum { HEDDLE_UNIT_OK = 0, HEDDLE_UNIT_REFUSED = 1, HEDDLE_UNIT_FAILED = 2 };

typedef struct {
  int interface; /* HEDDLE_UNIT_INTERFACE */
  /* Prepares product `name` in the current context. HEDDLE_UNIT_REFUSED: not for these sizes. */
  int (*create)(const char* name, const HeddleProduct* product, void** made, size_t* workspace);
  int (*launch)(void* made, unsigned long long workspace, void* stream);
  void (*destroy)(void* made);
  const char* (*message)(void); /* of the calling thread's last error */
} HeddleUnit;
/* The one symbol of a unit: "heddle_unit". */
typedef const HeddleUnit* (*HeddleUnitEntry)(void);

#ifdef __cplusplus
}
#endif
