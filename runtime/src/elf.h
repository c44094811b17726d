// What a shared library exports and wants, read from its bytes before anything is loaded.
#pragma once

#include <string>
#include <string_view>

namespace tilegraph {

// Empty if `image` is a shared library for this machine that needs no TVM runtime; else what is wrong with it.
std::string elf_problem(std::string_view image);

}  // namespace tilegraph
