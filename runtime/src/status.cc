#include "status.h"

namespace tilegraph {

const OrtApi* ort = nullptr;
const OrtEpApi* ort_ep = nullptr;

namespace {

// The bytes of the UTF-8 sequence at `text` (1 to 4), or 0 if there is none.
size_t utf8_length(const unsigned char* text, size_t left) {
  size_t length = text[0] < 0x80 ? 1 : text[0] >= 0xc2 && text[0] < 0xe0 ? 2 : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
                : text[0] >= 0xf0 && text[0] < 0xf5 ? 4 : 0;
  if (length > left) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((text[i] & 0xc0) != 0x80) return 0;
  // Overlong forms, surrogates and values beyond Unicode.
  if (length == 3 && ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] >= 0xa0))) return 0;
  if (length == 4 && ((text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] >= 0x90))) return 0;
  return length;
}

std::string valid_utf8(std::string text) {
  auto bytes = reinterpret_cast<unsigned char*>(text.data());
  for (size_t i = 0; i < text.size();) {
    size_t length = utf8_length(bytes + i, text.size() - i);
    if (length == 0) bytes[i] = '?';
    i += length ? length : 1;
  }
  return text;
}

}  // namespace

OrtStatus* new_status(OrtErrorCode code, const char* message) noexcept {
  if (code == ORT_EP_FAIL) code = ORT_RUNTIME_EXCEPTION;
  try {
    return ort->CreateStatus(code, valid_utf8(message).c_str());
  } catch (...) {
    return ort->CreateStatus(code, "TileGraph: out of memory");
  }
}

void raise(OrtStatus* status) {
  std::string message = ort->GetErrorMessage(status);
  OrtErrorCode code = ort->GetErrorCode(status);
  ort->ReleaseStatus(status);
  throw Error(code, message);
}

}  // namespace tilegraph
