#include "native.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "support/dtype.h"

namespace heddle::tool {
namespace {

namespace fs = std::filesystem;

/// A folder that is removed at the end.
class Workplace {
 public:
  Workplace() {
    std::string pattern = (fs::temp_directory_path() / "heddle-emit-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~Workplace() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Status write(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return fail("{}: cannot write", path.string());
  return Ok{};
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What the compiler's log says: the line that names the error, or the routine that is missing.
Error failure_in(const std::string& log) {
  const std::size_t routine = log.find("undefined reference to `heddle_");
  if (routine != std::string::npos) {
    const std::size_t begin = log.find('`', routine) + 1;
    return unsupported("--emit: a kernel calls '{}', which only Heddle's own run-time has",
                       log.substr(begin, log.find('\'', begin) - begin));
  }
  std::size_t at = log.find("error");
  if (at == std::string::npos) at = 0;
  const std::size_t begin = at == 0 ? 0 : log.rfind('\n', at) + 1;
  return fail("--emit: {}", log.substr(begin, log.find('\n', begin) - begin));
}

/// Runs a command, "cc" or "objcopy"; its log goes into the workplace.
Status call(const Workplace& place, std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const std::string log = place.path() / "log";
  const pid_t pid = ::fork();
  if (pid < 0) return fail("cannot fork");
  if (pid == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return fail(ErrorCode::missing, "--emit: found no '{}' in PATH, want a C compiler and binutils",
                arguments[0]);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return failure_in(read(log));
  return Ok{};
}

/// "out/my-model.so" → "my_model".
std::string identifier(const fs::path& output) {
  std::string name = output.stem().string();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) name = "_" + name;
  return name;
}

std::string c_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (std::iscntrl(static_cast<unsigned char>(c)) != 0)
      out += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + "\"";
}

std::string port_comment(const runtime::Port& port) {
  std::string name = port.name;  // must not end the comment
  for (char& c : name)
    if (c == '*' || std::iscntrl(static_cast<unsigned char>(c)) != 0) c = '?';
  return fmt::format("{} {}", name, to_string(port.type));
}

std::string header_text(const runtime::Program& program, const std::string& name) {
  std::string ports;
  for (std::size_t i = 0; i < program.inputs.size(); ++i)
    ports += fmt::format("   inputs[{}]: {}\n", i, port_comment(program.inputs[i]));
  for (std::size_t i = 0; i < program.outputs.size(); ++i)
    ports += fmt::format("   outputs[{}]: {}\n", i, port_comment(program.outputs[i]));
  return fmt::format(
      R"(/* Made by Heddle {1} for one kind of processor; needs libc, libm and pthreads.
{2}*/
#ifndef {0}_H
#define {0}_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {{
  const char *name, *type; /* type: f32, i64, ... */
  int rank;
  const int64_t* shape;
  size_t count, bytes; /* of the row-major buffer */
}} {0}_port;
enum {{ {0}_input_count = {3}, {0}_output_count = {4} }};
extern const {0}_port {0}_inputs[], {0}_outputs[];

typedef struct {0}_session {0}_session;
/* A session with its own memory, for one caller at a time; `threads` counts the caller. NULL: no
   memory, or no threads. */
{0}_session* {0}_create(int threads);
/* One run on row-major buffers, all 64-byte aligned: -1 if one is not, else 0. */
int {0}_run({0}_session* session, const void* const* inputs, void* const* outputs);
void {0}_destroy({0}_session* session);

#ifdef __cplusplus
}}
#endif
#endif
)",
      name, HEDDLE_VERSION, ports, program.inputs.size(), program.outputs.size());
}

std::string ports_text(const std::string& name, const char* which,
                       const std::vector<runtime::Port>& ports) {
  std::string shapes, rows;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const TensorType& type = ports[i].type;
    shapes += fmt::format("static const int64_t {}_shape_{}[] = {{", which, i);
    for (const std::int64_t e : type.shape) shapes += fmt::format("{}, ", e);
    shapes += "0};\n";
    const std::int64_t count = element_count(type.shape);
    rows += fmt::format("  {{{}, \"{}\", {}, {}_shape_{}, {}, {}}},\n", c_literal(ports[i].name),
                        name_of(type.dtype), type.shape.size(), which, i, count,
                        count * size_of(type.dtype));
  }
  return fmt::format("{}const {}_port {}_{}[] = {{\n{}  {{0, 0, 0, 0, 0, 0}}}};\n", shapes, name,
                     name, which, rows);
}

/// The tables that the run-time reads. `offsets`: of constants in the file of constants.
std::string tables_text(const runtime::Program& program, const std::string& name,
                        const std::vector<std::int64_t>& offsets, const fs::path& constants) {
  std::string slots, first = "0", phases, symbols;
  std::size_t slot_count = 0, phase_count = 0;
  std::set<std::string> declared;
  for (std::size_t l = 0; l < program.launches.size(); ++l) {
    for (const runtime::Slot& slot : program.launches[l].args) {
      constexpr const char* kKinds[] = {"ARENA", "INPUT", "OUTPUT", "CONSTANT"};
      const bool constant = slot.kind == runtime::Slot::Kind::constant;
      slots += fmt::format("{{{}, {}}},\n", kKinds[static_cast<int>(slot.kind)],
                           constant ? offsets[static_cast<std::size_t>(slot.index)] : slot.index);
      ++slot_count;
    }
    first += fmt::format(", {}", slot_count);
    for (const runtime::Phase& phase : program.launches[l].phases) {
      if (declared.insert(phase.symbol).second)
        symbols +=
            fmt::format("extern void {}(void* const*, int64_t, int64_t, void*);\n", phase.symbol);
      phases += fmt::format("{{{}, {}, {}}},\n", phase.symbol, phase.tasks, l);
      ++phase_count;
    }
  }
  return fmt::format(R"(#define NAME(x) {0}_##x
{1}{2}{3}
enum {{ PHASES = {4}, SLOTS = {5}, DENORMALS = {12} }};
#define ARENA_BYTES INT64_C({6})
#define SCRATCH_BYTES INT64_C({7})
enum {{ ARENA, INPUT, OUTPUT, CONSTANT }};
static const struct {{ void (*run)(void* const*, int64_t, int64_t, void*); int64_t tasks; int launch; }}
    phases[] = {{
{8}{{0, 0, 0}}}};
static const struct {{ int kind; int64_t index; }} slots[] = {{
{9}{{0, 0}}}};
static const int first_slot[] = {{{10}}};
__asm__(".section .rodata\n.balign 64\n{0}_constants:\n.incbin \"{11}\"\n.previous");
extern const unsigned char constants[] __asm__("{0}_constants")
    __attribute__((visibility("hidden")));
)",
                     name, symbols, ports_text(name, "inputs", program.inputs),
                     ports_text(name, "outputs", program.outputs), phase_count, slot_count,
                     program.arena_bytes, program.scratch_bytes, phases, slots, first,
                     constants.string(), program.denormals ? 1 : 0);
}

Result<std::vector<std::int64_t>> write_constants(const runtime::Program& program,
                                                  const fs::path& path) {
  std::vector<std::int64_t> offsets;
  std::ofstream file(path, std::ios::binary);
  std::int64_t at = 0;
  const std::string zeros(64, '\0');
  for (const Tensor& c : program.constants) {
    offsets.push_back(at);
    file.write(reinterpret_cast<const char*>(c.data()), c.bytes());
    const std::int64_t padding = (64 - c.bytes() % 64) % 64;
    file.write(zeros.data(), padding);
    at += c.bytes() + padding;
  }
  file << zeros;  // never empty, and kernels may read a vector past the end
  file.close();
  if (!file) return fail("{}: cannot write", path.string());
  return offsets;
}

/// One file of the objects, in which only the functions of the header are to be seen.
Status link(const Workplace& place, const std::vector<std::string>& objects, NativeKind kind,
            const std::string& name, const std::string& output) {
  const std::string shared = place.path() / "model.so", exported = place.path() / "exported";
  HEDDLE_TRY(write(exported, fmt::format("{{ global: {}_*; local: *; }};\n", name)));
  const auto cc = [&](std::vector<std::string> flags, const std::string& file) {
    flags.insert(flags.begin(), {"cc", "-o", file});
    flags.insert(flags.end(), objects.begin(), objects.end());
    if (kind != NativeKind::object || file == shared)
      flags.insert(flags.end(), {"-lpthread", "-lm"});
    return call(place, std::move(flags));
  };
  if (kind == NativeKind::executable) return cc({}, output);
  // Of an object file, too, this tells what a kernel calls that nobody has.
  HEDDLE_TRY(
      cc({"-shared", "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,--version-script=" + exported},
         kind == NativeKind::shared ? output : shared));
  if (kind == NativeKind::shared) return Ok{};
  HEDDLE_TRY(cc({"-r", "-nostdlib"}, output));
  return call(place,
              {"objcopy", "--wildcard", fmt::format("--keep-global-symbol={}_*", name), output});
}

}  // namespace

Status write_native(const runtime::Program& program, NativeKind kind, const std::string& output) {
  if (program.device != "cpu")
    return unsupported("--emit: found a program for '{}', want one for the CPU", program.device);
  const Workplace place;
  if (place.path().empty()) return fail("--emit: cannot make a temporary folder");
  const fs::path source = place.path() / "model.c";
  const std::string name = identifier(output);
  const auto offsets = HEDDLE_TRY(write_constants(program, place.path() / "constants"));
  std::string text =
      "#define _GNU_SOURCE\n#include <pthread.h>\n#include <sched.h>\n"
      "#include <stdatomic.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
      "#include <string.h>\n#include <sys/syscall.h>\n#include <time.h>\n#include "
      "<unistd.h>\n#include \"model.h\"\n";
  text += tables_text(program, name, offsets, place.path() / "constants");
  text += kNativeRoutines;
  text += kNativeRuntime;
  if (kind == NativeKind::executable) text += kNativeMain;
  HEDDLE_TRY(write(source, text));
  HEDDLE_TRY(write(place.path() / "model.h", header_text(program, name)));

  std::vector<std::string> objects;
  for (std::size_t i = 0; i < program.objects.size(); ++i) {
    objects.push_back(place.path() / fmt::format("kernels_{}.o", i));
    HEDDLE_TRY(write(objects.back(), program.objects[i]));
  }
  const std::string runtime = place.path() / "model.o";
  HEDDLE_TRY(call(place, {"cc", "-std=gnu11", "-O2", "-fPIC", "-c", source, "-o", runtime}));
  objects.push_back(runtime);
  const std::string made = place.path() / "made";
  HEDDLE_TRY(link(place, objects, kind, name, made));
  std::error_code error;
  fs::copy_file(made, output, fs::copy_options::overwrite_existing, error);
  if (error) return fail("{}: cannot write: {}", output, error.message());
  if (kind == NativeKind::executable) return Ok{};
  return write(fs::path(output).replace_extension(".h"), header_text(program, name));
}

}  // namespace heddle::tool
