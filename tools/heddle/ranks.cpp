#include "ranks.h"

#include <unistd.h>

#include <cstring>

#include "codegen/cuda/nvrtc.h"
#include "common.h"
#include "driver/platform.h"
#include "runtime/cuda/nccl.h"
#include "support/hash.h"

namespace heddle::tool {

Status want_agreement(runtime::Communicator& group, const std::vector<Setting>& settings) {
  // Each fills in its own row, so that the sum holds all rows; floats hold 16 bits exactly.
  constexpr std::size_t kDigits = 4;
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t row = settings.size() * kDigits;
  std::vector<float> all(row * ranks);
  const auto mine = all.begin() + group.rank() * static_cast<std::ptrdiff_t>(row);
  for (std::size_t k = 0; k < row; ++k)
    mine[static_cast<std::ptrdiff_t>(k)] = static_cast<float>(
        static_cast<std::uint64_t>(settings[k / kDigits].value) >> (16 * (k % kDigits)) & 0xffff);
  group.start_sum(all.data(), static_cast<std::int64_t>(all.size()));
  HEDDLE_TRY(group.wait());
  const auto value = [&](std::size_t rank, std::size_t setting) {
    std::uint64_t bits = 0;
    for (std::size_t d = 0; d < kDigits; ++d)
      bits |= static_cast<std::uint64_t>(all[rank * row + setting * kDigits + d]) << (16 * d);
    return static_cast<std::int64_t>(bits);
  };
  for (std::size_t s = 0; s < settings.size(); ++s)
    for (std::size_t rank = 1; rank < ranks; ++rank)
      if (value(rank, s) != value(0, s)) {
        if (settings[s].hash)
          return fail(ErrorCode::usage, "processes 0 and {} differ in {}", rank, settings[s].name);
        return fail(ErrorCode::usage, "processes differ in {}: {} in process 0, {} in process {}",
                    settings[s].name, value(0, s), value(rank, s), rank);
      }
  return Ok{};
}

namespace {

/// How many processes of a lower rank are on this machine.
Result<int> place_on_machine(runtime::Communicator& group) {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0)
    return fail("gethostname: {}", std::strerror(errno));
  const std::uint64_t hash = hash_bytes(name).low;
  constexpr std::size_t kDigits = 4;  // floats hold 16 bits exactly
  std::vector<float> all(kDigits * static_cast<std::size_t>(group.size()));
  const auto digit = [&](int rank, std::size_t d) -> float& {
    return all[kDigits * static_cast<std::size_t>(rank) + d];
  };
  for (std::size_t d = 0; d < kDigits; ++d)
    digit(group.rank(), d) = static_cast<float>(hash >> (16 * d) & 0xffff);
  group.start_sum(all.data(), static_cast<std::int64_t>(all.size()));
  HEDDLE_TRY(group.wait());
  int before = 0;
  for (int rank = 0; rank < group.rank(); ++rank) {
    bool same = true;
    for (std::size_t d = 0; d < kDigits; ++d) same &= digit(rank, d) == digit(group.rank(), d);
    before += same;
  }
  return before;
}

}  // namespace

Result<std::shared_ptr<runtime::Communicator>> join_processes(const std::string& how,
                                                              std::string& device) {
  if (how == "nccl" && device == "cpu")
    return fail(ErrorCode::usage, "--distributed nccl: found --device cpu, want cuda");
  auto group = HEDDLE_TRY(runtime::mpi_communicator());
  if (device == "cuda" && group->size() > 1)
    device = fmt::format("cuda:{}", HEDDLE_TRY(place_on_machine(*group)));
  return group;
}

Result<std::shared_ptr<runtime::Communicator>> with_nccl(
    std::shared_ptr<runtime::Communicator> group, const std::string& device,
    const std::string& library) {
  return runtime::cuda::nccl_communicator(std::move(group), global_options().cuda_driver,
                                          driver::cuda_ordinal(device).value_or(0),
                                          codegen::cuda::find_library("nccl", library));
}

}  // namespace heddle::tool
