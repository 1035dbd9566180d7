#include <tiffio.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "ops/images.h"

namespace heddle::ops {
namespace {

/// A file in memory, as libtiff reads it.
struct TiffSource {
  Bytes file;
  std::uint64_t at = 0;
};
TiffSource& of(thandle_t handle) { return *static_cast<TiffSource*>(handle); }

tmsize_t read(thandle_t handle, void* into, tmsize_t bytes) {
  TiffSource& source = of(handle);
  if (bytes <= 0 || source.at >= source.file.size()) return 0;
  const std::size_t got = std::min(static_cast<std::size_t>(bytes),
                                   source.file.size() - static_cast<std::size_t>(source.at));
  std::memcpy(into, source.file.data() + source.at, got);
  source.at += got;
  return static_cast<tmsize_t>(got);
}
tmsize_t write(thandle_t, void*, tmsize_t) { return -1; }
toff_t seek(thandle_t handle, toff_t offset, int whence) {
  TiffSource& source = of(handle);
  source.at = offset + (whence == SEEK_CUR   ? source.at
                        : whence == SEEK_END ? source.file.size()
                                             : 0);
  return source.at;
}
int close(thandle_t) { return 0; }
toff_t size(thandle_t handle) { return of(handle).file.size(); }

int note(TIFF*, void* user, const char*, const char* format, va_list values) {
  char text[256];
  std::vsnprintf(text, sizeof text, format, values);
  *static_cast<std::string*>(user) = text;
  return 1;
}
int ignore(TIFF*, void*, const char*, const char*, va_list) { return 1; }

}  // namespace

Result<Picture> decode_tiff(Bytes file) {
  TiffSource source{file};
  std::string message = "the data are damaged";
  const std::unique_ptr<TIFFOpenOptions, void (*)(TIFFOpenOptions*)> options(TIFFOpenOptionsAlloc(),
                                                                             TIFFOpenOptionsFree);
  TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), 4 * kMaxPixels);
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), note, &message);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), ignore, nullptr);
  const std::unique_ptr<TIFF, void (*)(TIFF*)> tiff(
      TIFFClientOpenExt("image", "rm", &source, read, write, seek, close, size, nullptr, nullptr,
                        options.get()),
      TIFFClose);
  if (tiff == nullptr) return fail("TIFF: {}", message);
  std::uint32_t width = 0, height = 0;
  TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height);
  Picture picture = HEDDLE_TRY(blank_picture(height, width));
  std::vector<std::uint32_t> pixels(picture.rgb.size() / 3);
  if (TIFFReadRGBAImageOriented(tiff.get(), width, height, pixels.data(), ORIENTATION_TOPLEFT, 1) ==
      0)
    return fail("TIFF: {}", message);
  for (std::size_t i = 0; i < picture.rgb.size(); ++i)
    picture.rgb[i] = static_cast<std::uint8_t>(pixels[i / 3] >> (8 * (i % 3)));
  return picture;
}

}  // namespace heddle::ops
