// Prints both digests of each line's number of bytes, byte i being i * 7 + 1 modulo 256.
#include <iostream>
#include <string>

#include "sha256.h"

int main() {
  for (size_t size; std::cin >> size;) {
    std::string data(size, '\0');
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * 7 + 1);
    std::cout << tilegraph::sha256_hex(data) << ' ' << tilegraph::sha256_hex_portable(data) << '\n';
  }
}
