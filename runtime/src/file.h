// Whole files.
#pragma once

#include <cstddef>
#include <string>

namespace tilegraph {

inline constexpr size_t kMaxLibraryBytes = size_t{2} << 30;

// The content of a regular file of at most `limit` bytes. Throws NO_SUCHFILE or INVALID_GRAPH: "<what> '<path>' ...".
std::string read_file(const std::string& path, size_t limit, const std::string& what);

// The folder that a path names a file in.
std::string folder_of(const std::string& path);

// The SHA-256 of a regular file of any size, read in pieces. Throws as `read_file`.
std::string sha256_of_file(const std::string& path, const std::string& what);

}  // namespace tilegraph
