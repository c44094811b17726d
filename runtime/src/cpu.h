// What the machine's CPU can do, in the words of the manifest.
#pragma once

#include <string>
#include <vector>

namespace tilegraph {

// Empty if this CPU has `isa` (a base level: x86-64, x86-64-v2, -v3, -v4; armv8-a) and every one of `features` (LLVM's spelling);
// else a sentence that says what it lacks. A name that is not known counts as lacking.
std::string cpu_lacks(const std::string& isa, const std::vector<std::string>& features);

}  // namespace tilegraph
