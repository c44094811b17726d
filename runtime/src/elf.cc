#include "elf.h"

#include <elf.h>

#include <cstring>

#include "elf_read.h"

namespace tilegraph {
namespace {

#if defined(__x86_64__)
constexpr int kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#else
#error "tilegraph's runtime supports x86-64 and aarch64 Linux"
#endif

// Pointers that TVM's own loader fills in a library, and the entry points of its runtime that one may call. This
// runtime provides neither, and an unfilled pointer would be a segmentation fault at the first call.
bool needs_tvm(std::string_view name, bool defined) {
  if (defined) return name.starts_with("__TVM") || name.starts_with("__tvm_ffi__library_");
  return name.starts_with("TVM");
}

}  // namespace

std::string elf_problem(std::string_view image) {
  const std::string broken = "it is not a valid shared library";
  auto header = read_at<Elf64_Ehdr>(image, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return "it is not an ELF shared library";
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_machine != kMachine)
    return "it was compiled for another kind of machine";
  if (header->e_type != ET_DYN || header->e_shentsize != sizeof(Elf64_Shdr)) return broken;

  bool has_symbols = false;
  for (uint64_t i = 0; i < header->e_shnum; ++i) {
    auto section = read_at<Elf64_Shdr>(image, header->e_shoff + i * sizeof(Elf64_Shdr));
    if (!section) return broken;
    if (section->sh_type != SHT_DYNSYM) continue;
    has_symbols = true;
    auto strings = read_at<Elf64_Shdr>(image, header->e_shoff + section->sh_link * sizeof(Elf64_Shdr));
    if (!strings || section->sh_entsize != sizeof(Elf64_Sym) || strings->sh_offset > image.size() ||
        strings->sh_size > image.size() - strings->sh_offset)
      return broken;
    std::string_view table = image.substr(strings->sh_offset, strings->sh_size);
    for (uint64_t k = 0; k < section->sh_size / sizeof(Elf64_Sym); ++k) {
      auto symbol = read_at<Elf64_Sym>(image, section->sh_offset + k * sizeof(Elf64_Sym));
      if (!symbol || symbol->st_name >= table.size()) return broken;
      std::string_view name = table.substr(symbol->st_name);
      name = name.substr(0, name.find('\0'));
      if (needs_tvm(name, symbol->st_shndx != SHN_UNDEF))
        return "it needs the TVM runtime (symbol " + std::string(name) + "), which does not exist at serving time";
    }
  }
  return has_symbols ? "" : "it has no dynamic symbol table";
}

}  // namespace tilegraph
