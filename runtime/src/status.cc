#include "status.h"

namespace tilegraph {

const OrtApi* ort = nullptr;
const OrtEpApi* ort_ep = nullptr;

void raise(OrtStatus* status) {
  std::string message = ort->GetErrorMessage(status);
  OrtErrorCode code = ort->GetErrorCode(status);
  ort->ReleaseStatus(status);
  throw Error(code, message);
}

}  // namespace tilegraph
