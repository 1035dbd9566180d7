// A driver for device_test: describes two devices, the second only in part. The count comes from
// the caller through set_devices.
#include <cstddef>
#include <cstdio>

#define EXPORT extern "C" __attribute__((visibility("default")))

static int device_count = 1;

EXPORT void set_devices(int count) { device_count = count; }
EXPORT int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
EXPORT int cuGetErrorString(int code, const char** text) {
  *text = code == 101 ? "invalid device ordinal" : "some error";
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) { return *count = device_count, 0; }
EXPORT int cuDeviceGet(int* device, int ordinal) {
  return *device = ordinal, ordinal == 0 ? 0 : 101;
}
EXPORT int cuDeviceGetName(char* text, int bytes, int) {
  return std::snprintf(text, static_cast<std::size_t>(bytes), "stand-in"), 0;
}
EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t{1} << 33, 0; }
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  return *value = attribute == 75   ? 9
                  : attribute == 76 ? 0
                  : attribute == 95 ? 1
                                    : 1000 + attribute,
         0;
}
