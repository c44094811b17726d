#include "image.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "elf_read.h"
#include "status.h"

namespace tilegraph {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kRelative = R_X86_64_RELATIVE, kAddress = R_X86_64_64, kGlobal = R_X86_64_GLOB_DAT, kCall = R_X86_64_JUMP_SLOT;
#elif defined(__aarch64__)
constexpr uint32_t kRelative = R_AARCH64_RELATIVE, kAddress = R_AARCH64_ABS64, kGlobal = R_AARCH64_GLOB_DAT,
                   kCall = R_AARCH64_JUMP_SLOT;
#endif

constexpr uint64_t kMostBytes = uint64_t{1} << 31;  // of a placed library
constexpr size_t kMostSegments = 16;

// What LLVM calls without being told to. The linker's own copy may be chosen by the CPU, as ours is.
void* libc_function(std::string_view name) {
  if (name == "memcpy") return reinterpret_cast<void*>(&std::memcpy);
  if (name == "memset") return reinterpret_cast<void*>(&std::memset);
  if (name == "memmove") return reinterpret_cast<void*>(&std::memmove);
  return nullptr;
}

struct Unsupported {
  std::string why;
};

template <class T>
T need(std::optional<T> value) {
  if (!value) throw Unsupported{"its tables lie outside the file"};
  return *value;
}

struct Tables {
  uint64_t symbols = 0, strings = 0, strings_size = 0;
  uint64_t relocations[2] = {0, 0}, relocation_bytes[2] = {0, 0};  // of data, of calls
};

// One library on its way into memory. Offsets of `view_` are the file's virtual addresses.
class Placer {
 public:
  explicit Placer(std::string_view file) : file_(file), page_(static_cast<uint64_t>(sysconf(_SC_PAGESIZE))) {
    auto header = need(read_at<Elf64_Ehdr>(file, 0));
    if (header.e_phentsize != sizeof(Elf64_Phdr)) throw Unsupported{"its segments have an unknown form"};
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
      auto segment = need(read_at<Elf64_Phdr>(file, header.e_phoff + i * sizeof(Elf64_Phdr)));
      if (segment.p_type == PT_LOAD) add(segment);
      else if (segment.p_type == PT_DYNAMIC) dynamic_ = segment.p_vaddr;
      else if (segment.p_type == PT_GNU_RELRO) relro_ = segment;
      else if (segment.p_type == PT_TLS) throw Unsupported{"it has thread-local variables"};
    }
    if (segments_.empty() || !dynamic_) throw Unsupported{"it has nothing to load"};
  }

  uint64_t bytes() const { return end_; }

  // Copies and links the library at `base`, which holds zeros and can be written.
  void fill(char* base) {
    base_ = base;
    for (const Elf64_Phdr& segment : segments_)
      std::memcpy(base + segment.p_vaddr, file_.data() + segment.p_offset, segment.p_filesz);
    view_ = {base, end_};
    read_tables();
    for (int kind = 0; kind < 2; ++kind)
      for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= tables_.relocation_bytes[kind]; at += sizeof(Elf64_Rela))
        apply(need(read_at<Elf64_Rela>(view_, tables_.relocations[kind] + at)));
  }

  void protect() const {
    auto set = [&](uint64_t first, uint64_t end, int access) {
      if (first < end && mprotect(base_ + first, end - first, access) != 0)
        throw Unsupported{cat("memory that was written cannot be made executable here (", std::strerror(errno), ")")};
    };
    for (const Elf64_Phdr& segment : segments_) {
      uint64_t first = segment.p_vaddr / page_ * page_, end = round_up(segment.p_vaddr + segment.p_memsz);
      int access = (segment.p_flags & PF_R ? PROT_READ : 0) | (segment.p_flags & PF_W ? PROT_WRITE : 0) |
                   (segment.p_flags & PF_X ? PROT_EXEC : 0);
      set(first, end, access);
      if (segment.p_flags & PF_X) __builtin___clear_cache(base_ + first, base_ + end);
    }
    // The table of addresses, which nothing writes any more.
    uint64_t from = std::min(relro_.p_vaddr, end_), length = std::min(relro_.p_memsz, end_ - from);
    set(from / page_ * page_, (from + length) / page_ * page_, PROT_READ);
  }

  // Every symbol that the library defines, by name.
  std::vector<std::pair<std::string_view, void*>> exports() const {
    std::vector<std::pair<std::string_view, void*>> found;
    for (uint64_t k = 1, count = symbol_count(); k < count; ++k) {
      auto symbol = symbol_at(k);
      if (symbol.st_shndx != SHN_UNDEF) found.emplace_back(name_of(symbol), address_of(symbol));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  uint64_t round_up(uint64_t value) const { return (value + page_ - 1) / page_ * page_; }

  void add(const Elf64_Phdr& segment) {
    if (segment.p_vaddr > kMostBytes || segment.p_memsz > kMostBytes || segment.p_filesz > segment.p_memsz ||
        segment.p_offset > file_.size() || segment.p_filesz > file_.size() - segment.p_offset)
      throw Unsupported{"a segment lies outside the file"};
    if (segment.p_vaddr < end_) throw Unsupported{"its segments share pages of this machine"};
    if ((segment.p_flags & PF_W) && (segment.p_flags & PF_X)) throw Unsupported{"it has code that can be written"};
    if (segments_.size() == kMostSegments) throw Unsupported{"it has too many segments"};
    segments_.push_back(segment);
    end_ = round_up(segment.p_vaddr + segment.p_memsz);
  }

  void read_tables() {
    for (uint64_t at = dynamic_;; at += sizeof(Elf64_Dyn)) {
      auto entry = need(read_at<Elf64_Dyn>(view_, at));
      uint64_t value = entry.d_un.d_val;
      switch (entry.d_tag) {
        case DT_NULL: return;
        case DT_SYMTAB: tables_.symbols = value; break;
        case DT_STRTAB: tables_.strings = value; break;
        case DT_STRSZ: tables_.strings_size = value; break;
        case DT_RELA: tables_.relocations[0] = value; break;
        case DT_RELASZ: tables_.relocation_bytes[0] = value; break;
        case DT_JMPREL: tables_.relocations[1] = value; break;
        case DT_PLTRELSZ: tables_.relocation_bytes[1] = value; break;
        case DT_FLAGS:
          if (value & ~uint64_t{DF_BIND_NOW}) throw Unsupported{"it has flags that are the dynamic linker's"};
          break;
        // Of no use here: calls are bound at once, names are looked up by us, and libc is in the process.
        case DT_FLAGS_1: case DT_NEEDED: case DT_SONAME: case DT_HASH: case DT_GNU_HASH: case DT_SYMENT: case DT_RELAENT:
        case DT_RELACOUNT: case DT_PLTREL: case DT_PLTGOT: case DT_VERSYM: case DT_VERNEED: case DT_VERNEEDNUM:
          break;
        default: throw Unsupported{cat("it has an entry ", entry.d_tag, " that is the dynamic linker's")};
      }
    }
  }

  uint64_t symbol_count() const {
    // Only sections say how many there are; elf_problem has read them.
    auto header = need(read_at<Elf64_Ehdr>(file_, 0));
    for (uint64_t i = 0; i < header.e_shnum; ++i) {
      auto section = need(read_at<Elf64_Shdr>(file_, header.e_shoff + i * sizeof(Elf64_Shdr)));
      if (section.sh_type == SHT_DYNSYM) return section.sh_size / sizeof(Elf64_Sym);
    }
    return 0;
  }

  Elf64_Sym symbol_at(uint64_t index) const {
    return need(read_at<Elf64_Sym>(view_, tables_.symbols + index * sizeof(Elf64_Sym)));
  }

  std::string_view name_of(const Elf64_Sym& symbol) const {
    if (symbol.st_name >= tables_.strings_size || tables_.strings > view_.size() ||
        tables_.strings_size > view_.size() - tables_.strings)
      throw Unsupported{"a name lies outside the file"};
    std::string_view rest = view_.substr(tables_.strings, tables_.strings_size).substr(symbol.st_name);
    return rest.substr(0, rest.find('\0'));
  }

  void* address_of(const Elf64_Sym& symbol) const {
    auto type = ELF64_ST_TYPE(symbol.st_info);
    if (type != STT_FUNC && type != STT_OBJECT && type != STT_NOTYPE)
      throw Unsupported{cat("its symbol '", name_of(symbol), "' is of a kind that the dynamic linker resolves")};
    if (symbol.st_shndx == SHN_UNDEF) {
      void* known = libc_function(name_of(symbol));
      if (!known) throw Unsupported{cat("it wants the symbol '", name_of(symbol), "'")};
      return known;
    }
    if (symbol.st_value >= end_) throw Unsupported{"a symbol lies outside the file"};
    return base_ + symbol.st_value;
  }

  void apply(const Elf64_Rela& relocation) {
    auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
    uint64_t value;
    if (type == kRelative) {
      value = reinterpret_cast<uint64_t>(base_) + static_cast<uint64_t>(relocation.r_addend);
    } else if (type == kGlobal || type == kCall || type == kAddress) {
      value = reinterpret_cast<uint64_t>(address_of(symbol_at(ELF64_R_SYM(relocation.r_info)))) +
              static_cast<uint64_t>(relocation.r_addend);
    } else {
      throw Unsupported{cat("it has a relocation of type ", type)};
    }
    need(read_at<uint64_t>(view_, relocation.r_offset));
    std::memcpy(base_ + relocation.r_offset, &value, sizeof value);
  }

  std::string_view file_;
  uint64_t page_;
  std::vector<Elf64_Phdr> segments_;
  Elf64_Phdr relro_{};
  uint64_t end_ = 0, dynamic_ = 0;
  char* base_ = nullptr;
  std::string_view view_;
  Tables tables_;
};

}  // namespace

std::unique_ptr<Image> Image::place(std::string_view file, std::string& why) {
  try {
    Placer placer(file);
    void* memory = mmap(nullptr, placer.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Unsupported{cat("mmap: ", std::strerror(errno))};
    std::unique_ptr<Image> image(new Image(static_cast<char*>(memory), placer.bytes()));
    placer.fill(image->base_);
    image->exports_ = placer.exports();
    placer.protect();
    return image;
  } catch (const Unsupported& e) {
    why = e.why;
    return nullptr;
  }
}

Image::~Image() { munmap(base_, bytes_); }

void* Image::find(std::string_view name) const {
  auto found = std::lower_bound(exports_.begin(), exports_.end(), name, [](const auto& entry, std::string_view n) { return entry.first < n; });
  return found != exports_.end() && found->first == name ? found->second : nullptr;
}

}  // namespace tilegraph
