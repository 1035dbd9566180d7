#include "support/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace heddle {

Result<File> File::open(const std::string& path) {
  // Opening a pipe that nobody writes to would wait for ever.
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor_ < 0) return fail("{}: {}", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.descriptor_, &info) != 0 || !S_ISREG(info.st_mode))
    return fail("{}: not a regular file", path);
  file.size_ = static_cast<std::size_t>(info.st_size);
  return file;
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status File::read(void* to, std::size_t from, std::size_t count) const {
  for (std::size_t done = 0; done < count;) {
    const ssize_t some = ::pread(descriptor_, static_cast<std::byte*>(to) + done, count - done,
                                 static_cast<off_t>(from + done));
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0)
      return fail("cannot be read: {}", some < 0 ? std::strerror(errno) : "it was cut meanwhile");
    done += static_cast<std::size_t>(some);
  }
  return Ok{};
}

Result<FileBytes> File::map() const {
  if (size_ == 0) return FileBytes{};  // which cannot be mapped
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (memory == MAP_FAILED) return fail("cannot be mapped: {}", std::strerror(errno));
  return FileBytes{static_cast<const std::byte*>(memory), size_,
                   std::shared_ptr<const void>(memory, [size = size_](const void* p) {
                     ::munmap(const_cast<void*>(p), size);
                   })};
}

Result<FileBytes> map_file(const std::string& path) {
  const File file = HEDDLE_TRY(File::open(path));
  Result<FileBytes> mapped = file.map();
  if (!mapped) return fail("{}: {}", path, mapped.error().message);
  return mapped;
}

}  // namespace heddle
