#include <openjpeg.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "ops/images.h"

namespace heddle::ops {
namespace {

/// A file in memory, as OpenJPEG reads it.
struct Jpeg2000Source {
  Bytes file;
  std::size_t at = 0;
};
OPJ_SIZE_T read(void* into, OPJ_SIZE_T bytes, void* user) {
  auto& source = *static_cast<Jpeg2000Source*>(user);
  const std::size_t got = std::min<std::size_t>(bytes, source.file.size() - source.at);
  if (got == 0) return static_cast<OPJ_SIZE_T>(-1);
  std::memcpy(into, source.file.data() + source.at, got);
  source.at += got;
  return got;
}
OPJ_OFF_T skip(OPJ_OFF_T bytes, void* user) {
  auto& source = *static_cast<Jpeg2000Source*>(user);
  const auto room = static_cast<OPJ_OFF_T>(source.file.size() - source.at);
  if (bytes < 0 || bytes > room) return -1;
  source.at += static_cast<std::size_t>(bytes);
  return bytes;
}
OPJ_BOOL seek(OPJ_OFF_T to, void* user) {
  auto& source = *static_cast<Jpeg2000Source*>(user);
  if (to < 0 || static_cast<std::size_t>(to) > source.file.size()) return OPJ_FALSE;
  source.at = static_cast<std::size_t>(to);
  return OPJ_TRUE;
}

void note(const char* text, void* user) {
  std::string& message = *static_cast<std::string*>(user);
  message = text;
  while (!message.empty() && message.back() == '\n') message.pop_back();
}

/// A component's sample in 8 bits.
std::uint8_t sample(const opj_image_comp_t& c, std::size_t i) {
  const int bits = static_cast<int>(c.prec);
  const std::int64_t value =
      std::int64_t{c.data[i]} + (c.sgnd != 0 ? std::int64_t{1} << (bits - 1) : 0);
  const std::int64_t scaled = bits > 8 ? value >> (bits - 8) : value * 255 / ((1 << bits) - 1);
  return static_cast<std::uint8_t>(std::clamp<std::int64_t>(scaled, 0, 255));
}

/// Grey or RGB, each with or without alpha, all channels of one size.
Result<Picture> picture_of(const opj_image_t& image) {
  if (image.color_space == OPJ_CLRSPC_SYCC || image.color_space == OPJ_CLRSPC_EYCC ||
      image.color_space == OPJ_CLRSPC_CMYK)
    return fail("JPEG2000: only grey and RGB pictures are supported");
  const std::size_t colours = image.numcomps >= 3 ? 3 : 1;
  for (std::size_t c = 0; c < colours; ++c) {
    const opj_image_comp_t& comp = image.comps[c];
    if (comp.data == nullptr || comp.w != image.comps[0].w || comp.h != image.comps[0].h ||
        comp.prec < 1 || comp.prec > 31)
      return fail("JPEG2000: channels of different sizes are not supported");
  }
  Picture picture = HEDDLE_TRY(blank_picture(image.comps[0].h, image.comps[0].w));
  for (std::size_t i = 0; i < picture.rgb.size(); ++i)
    picture.rgb[i] = sample(image.comps[colours == 3 ? i % 3 : 0], i / 3);
  return picture;
}

}  // namespace

Result<Picture> decode_jpeg2000(Bytes file) {
  Jpeg2000Source source{file};
  std::string message = "the data are damaged";
  const std::unique_ptr<opj_codec_t, void (*)(opj_codec_t*)> codec(
      opj_create_decompress(file[0] == 0 ? OPJ_CODEC_JP2 : OPJ_CODEC_J2K), opj_destroy_codec);
  const std::unique_ptr<opj_stream_t, void (*)(opj_stream_t*)> stream(
      opj_stream_create(1 << 16, OPJ_TRUE), opj_stream_destroy);
  opj_set_error_handler(codec.get(), note, &message);
  opj_dparameters_t parameters;
  opj_set_default_decoder_parameters(&parameters);
  opj_stream_set_user_data(stream.get(), &source, nullptr);
  opj_stream_set_user_data_length(stream.get(), file.size());
  opj_stream_set_read_function(stream.get(), read);
  opj_stream_set_skip_function(stream.get(), skip);
  opj_stream_set_seek_function(stream.get(), seek);
  opj_image_t* header = nullptr;
  if (opj_setup_decoder(codec.get(), &parameters) == OPJ_FALSE ||
      opj_read_header(stream.get(), codec.get(), &header) == OPJ_FALSE)
    return fail("JPEG2000: {}", message);
  const std::unique_ptr<opj_image_t, void (*)(opj_image_t*)> image(header, opj_image_destroy);
  // Before anything of that size is made.
  if (image->numcomps < 1 || image->numcomps > 4)
    return fail("JPEG2000: found {} channels", image->numcomps);
  HEDDLE_TRY(
      blank_picture(std::int64_t{image->y1} - image->y0, std::int64_t{image->x1} - image->x0));
  if (opj_decode(codec.get(), stream.get(), image.get()) == OPJ_FALSE ||
      opj_end_decompress(codec.get(), stream.get()) == OPJ_FALSE)
    return fail("JPEG2000: {}", message);
  return picture_of(*image);
}

}  // namespace heddle::ops
