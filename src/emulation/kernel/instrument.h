// What the compiler's instrumentation calls: thread sanitizer's hooks and undefined behaviour's
// handlers, both to the emulator. Included once by a module.
#pragma once

#ifdef HEDDLE_EMULATE_RACES
#define HEDDLE_EMU_HOOK extern "C" __attribute__((visibility("hidden"), no_sanitize("thread")))
#define HEDDLE_EMU_ACCESS(name, bytes, write)                           \
  HEDDLE_EMU_HOOK void __tsan_##name(void* at) {                        \
    emu::runtime.access(at, bytes, write, __builtin_return_address(0)); \
  }
#define HEDDLE_EMU_ACCESSES(bytes)                   \
  HEDDLE_EMU_ACCESS(read##bytes, bytes, 0)           \
  HEDDLE_EMU_ACCESS(write##bytes, bytes, 1)          \
  HEDDLE_EMU_ACCESS(unaligned_read##bytes, bytes, 0) \
  HEDDLE_EMU_ACCESS(unaligned_write##bytes, bytes, 1)
HEDDLE_EMU_ACCESSES(1)
HEDDLE_EMU_ACCESSES(2)
HEDDLE_EMU_ACCESSES(4)
HEDDLE_EMU_ACCESSES(8)
HEDDLE_EMU_ACCESSES(16)
HEDDLE_EMU_HOOK void __tsan_init() {}
HEDDLE_EMU_HOOK void __tsan_vptr_update(void**, void*) {}
HEDDLE_EMU_HOOK void __tsan_read_range(void* at, long bytes) {
  emu::runtime.access(at, bytes, 0, __builtin_return_address(0));
}
HEDDLE_EMU_HOOK void __tsan_write_range(void* at, long bytes) {
  emu::runtime.access(at, bytes, 1, __builtin_return_address(0));
}
#endif

#if defined(HEDDLE_EMULATE_UB) || defined(HEDDLE_EMULATE_RACES)
#define HEDDLE_EMU_UNDEFINED(name, what)                                          \
  extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_##name() { \
    emu::runtime.undefined(what, __builtin_return_address(0));                    \
  }
HEDDLE_EMU_UNDEFINED(type_mismatch_v1, "misaligned or null access")
HEDDLE_EMU_UNDEFINED(out_of_bounds, "array index out of bounds")
HEDDLE_EMU_UNDEFINED(add_overflow, "overflow of +")
HEDDLE_EMU_UNDEFINED(sub_overflow, "overflow of -")
HEDDLE_EMU_UNDEFINED(mul_overflow, "overflow of *")
HEDDLE_EMU_UNDEFINED(negate_overflow, "overflow of a negation")
HEDDLE_EMU_UNDEFINED(divrem_overflow, "division by zero, or its overflow")
HEDDLE_EMU_UNDEFINED(shift_out_of_bounds, "shift by the width or more")
HEDDLE_EMU_UNDEFINED(builtin_unreachable, "unreachable code is reached")
HEDDLE_EMU_UNDEFINED(missing_return, "a function ends without its value")
HEDDLE_EMU_UNDEFINED(vla_bound_not_positive, "array of negative size")
HEDDLE_EMU_UNDEFINED(load_invalid_value, "a bool that is neither 0 nor 1")
HEDDLE_EMU_UNDEFINED(float_cast_overflow, "overflow of a cast")
HEDDLE_EMU_UNDEFINED(pointer_overflow, "overflow of a pointer")
HEDDLE_EMU_UNDEFINED(nonnull_arg, "null argument")
HEDDLE_EMU_UNDEFINED(invalid_builtin, "zero passed to a bit count")
#endif
