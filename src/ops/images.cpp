#include "ops/images.h"

#include <png.h>
#include <turbojpeg.h>
#include <webp/decode.h>

#include <memory>
#include <string_view>

#include "ops/families.h"
#include "ops/host.h"
#include "ops/util.h"
#include "support/log.h"

/// ImageDecoder, a host operator: the size of its result is in the file.
namespace heddle::ops {

Result<Picture> blank_picture(std::int64_t height, std::int64_t width) {
  if (height <= 0 || width <= 0) return fail("found {} × {} pixels", width, height);
  if (height > kMaxPixels / width)
    return fail("found {} × {} pixels, want at most {}", width, height, kMaxPixels);
  return Picture{height, width,
                 std::vector<std::uint8_t>(static_cast<std::size_t>(height * width) * 3)};
}

namespace {

/// Chroma is upsampled smoothly, as the standard asks; damaged data are an error, but bytes between
/// the segments, which cameras write, are not.
Result<Picture> decode_jpeg(Bytes file) {
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  const auto size = static_cast<unsigned long>(file.size());
  int width = 0, height = 0, sampling = 0, colours = 0;
  if (decoder == nullptr || tjDecompressHeader3(decoder.get(), file.data(), size, &width, &height,
                                                &sampling, &colours) != 0)
    return fail("JPEG: {}", tjGetErrorStr2(decoder.get()));
  Picture picture = HEDDLE_TRY(blank_picture(height, width));
  if (tjDecompress2(decoder.get(), file.data(), size, picture.rgb.data(), width, 0, height,
                    TJPF_RGB, TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS) != 0) {
    const std::string_view reason = tjGetErrorStr2(decoder.get());
    if (tjGetErrorCode(decoder.get()) != TJERR_WARNING ||
        reason.find("extraneous bytes") == std::string_view::npos)
      return fail("JPEG: {}", reason);
  }
  return picture;
}

Result<Picture> decode_png(Bytes file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> cleanup(&image, png_image_free);
  if (png_image_begin_read_from_memory(&image, file.data(), file.size()) == 0)
    return fail("PNG: {}", image.message);
  Picture picture = HEDDLE_TRY(blank_picture(image.height, image.width));
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // and not linear
  image.format = PNG_FORMAT_RGBA;            // without alpha in the result it would be blended
  std::vector<std::uint8_t> pixels(picture.rgb.size() / 3 * 4);
  if (png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr) == 0)
    return fail("PNG: {}", image.message);
  for (std::size_t i = 0; i < picture.rgb.size(); ++i) picture.rgb[i] = pixels[i / 3 * 4 + i % 3];
  return picture;
}

Result<Picture> decode_webp(Bytes file) {
  int width = 0, height = 0;
  if (WebPGetInfo(file.data(), file.size(), &width, &height) == 0)
    return fail("WebP: the header is damaged");
  Picture picture = HEDDLE_TRY(blank_picture(height, width));
  if (WebPDecodeRGBInto(file.data(), file.size(), picture.rgb.data(), picture.rgb.size(),
                        3 * width) == nullptr)
    return fail("WebP: the data are damaged, or it is an animation");
  return picture;
}

struct Codec {
  std::size_t at;
  std::string_view signature;
  Result<Picture> (*decode)(Bytes);
};
using namespace std::string_view_literals;
constexpr Codec kCodecs[] = {
    {0, "\xff\xd8\xff"sv, decode_jpeg},
    {0, "\x89PNG\r\n\x1a\n"sv, decode_png},
    {8, "WEBP"sv, decode_webp},
    {0, "BM"sv, decode_bmp},
    {0, "II*\0"sv, decode_tiff},
    {0, "MM\0*"sv, decode_tiff},
    {0, "\0\0\0\x0cjP  \r\n\x87\n"sv, decode_jpeg2000},
    {0, "\xff\x4f\xff\x51"sv, decode_jpeg2000},
    {0, "P1"sv, decode_pnm},
    {0, "P2"sv, decode_pnm},
    {0, "P3"sv, decode_pnm},
    {0, "P4"sv, decode_pnm},
    {0, "P5"sv, decode_pnm},
    {0, "P6"sv, decode_pnm},
};

}  // namespace

Result<Picture> decode_picture(Bytes file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (const Codec& codec : kCodecs)
    if (text.size() > codec.at && text.substr(codec.at).starts_with(codec.signature))
      return codec.decode(file);
  return fail("found none of BMP, JPEG, JPEG2000, PNG, PNM, TIFF and WebP");
}

namespace {

enum class Pixels { rgb, bgr, grey };

/// Luma of ITU-R BT.601 in 16-bit fixed point, as Pillow's.
std::uint8_t luma(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 0x8000u) >>
                                   16);
}

/// u8[height, width, channels]; of what cannot be decoded u8[0, 0, channels], by the standard.
Result<std::vector<HostValue>> image_decoder(const Call& call, std::span<const Tensor> args) {
  const Tensor& x = args[0];
  const auto pixels = static_cast<Pixels>(
      HEDDLE_TRY(choice(call, "pixel_format", "RGB", {"RGB", "BGR", "Grayscale"})));
  const std::int64_t channels = pixels == Pixels::grey ? 1 : 3;
  const Result<Picture> picture = decode_picture(x.as<std::uint8_t>());
  if (!picture) {
    log(LogLevel::warning, "{} '{}': {}: the result is empty", call.op, call.name,
        picture.error().message);
    return std::vector{HostValue{Tensor({DType::u8, {0, 0, channels}}), Format::plain}};
  }
  Tensor out({DType::u8, {picture->height, picture->width, channels}});
  const auto to = out.as_mutable<std::uint8_t>();
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] = pixels == Pixels::rgb   ? picture->rgb[i]
            : pixels == Pixels::bgr ? picture->rgb[i - i % 3 + 2 - i % 3]
                                    : luma(&picture->rgb[3 * i]);
  return std::vector{HostValue{std::move(out), Format::plain}};
}

}  // namespace

std::span<const OpDef> image_ops() {
  static constexpr OpDef kImageOps[] = {
      {"ImageDecoder", 20, 1, 1, nullptr, OpDef::Stored::refuses, image_decoder},
  };
  return kImageOps;
}

}  // namespace heddle::ops
