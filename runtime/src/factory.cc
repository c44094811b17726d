#include "factory.h"

#include "ep.h"
#include "options.h"

namespace tilegraph {
namespace {

const char* ORT_API_CALL get_name(const OrtEpFactory*) noexcept { return kEpName; }
const char* ORT_API_CALL get_vendor(const OrtEpFactory*) noexcept { return "tilegraph"; }
uint32_t ORT_API_CALL get_vendor_id(const OrtEpFactory*) noexcept { return 0; }
const char* ORT_API_CALL get_version(const OrtEpFactory*) noexcept { return TILEGRAPH_VERSION; }

OrtStatus* ORT_API_CALL get_supported_devices(OrtEpFactory* self, const OrtHardwareDevice* const* devices, size_t count,
                                              OrtEpDevice** out, size_t max, size_t* found) noexcept {
  return guarded([&] {
    *found = 0;
    for (size_t i = 0; i < count && *found < max; ++i) {
      if (ort->HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
      check(ort_ep->CreateEpDevice(self, devices[i], nullptr, nullptr, &out[*found]));
      ++*found;
    }
  });
}

OrtStatus* ORT_API_CALL create_ep(OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                                  const OrtSessionOptions* session, const OrtLogger* logger, OrtEp** ep) noexcept {
  return guarded([&] { *ep = new Ep(read_options(session), logger); });
}

void ORT_API_CALL release_ep(OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<Ep*>(ep); }

// The default allocator, no data transfer and no streams: everything lives in ordinary CPU memory.
OrtStatus* ORT_API_CALL create_allocator(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                                         OrtAllocator** allocator) noexcept {
  *allocator = nullptr;
  return nullptr;
}
void ORT_API_CALL release_allocator(OrtEpFactory*, OrtAllocator*) noexcept {}
OrtStatus* ORT_API_CALL create_data_transfer(OrtEpFactory*, OrtDataTransferImpl** transfer) noexcept {
  *transfer = nullptr;
  return nullptr;
}
bool ORT_API_CALL is_stream_aware(const OrtEpFactory*) noexcept { return false; }
OrtStatus* ORT_API_CALL create_stream(OrtEpFactory*, const OrtMemoryDevice*, const OrtKeyValuePairs*,
                                      OrtSyncStreamImpl** stream) noexcept {
  *stream = nullptr;
  return nullptr;
}

}  // namespace

Factory::Factory() : OrtEpFactory{} {
  ort_version_supported = kApiVersion;
  GetName = get_name;
  GetVendor = get_vendor;
  GetVendorId = get_vendor_id;
  GetVersion = get_version;
  GetSupportedDevices = get_supported_devices;
  CreateEp = create_ep;
  ReleaseEp = release_ep;
  CreateAllocator = create_allocator;
  ReleaseAllocator = release_allocator;
  CreateDataTransfer = create_data_transfer;
  IsStreamAware = is_stream_aware;
  CreateSyncStreamForDevice = create_stream;
}

}  // namespace tilegraph
