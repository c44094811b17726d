// The provider of one session: claims the EPContext nodes that tilegraph wrote and makes kernels of them.
#pragma once

#include <memory>

#include "arena.h"
#include "artifact.h"
#include "options.h"
#include "status.h"

namespace tilegraph {

class Ep : public OrtEp {
 public:
  Ep(const Options& options, const OrtLogger* logger);

 private:
  void claim(const OrtGraph* graph, OrtEpGraphSupportInfo* info);
  void compile(const OrtGraph** graphs, const OrtNode** fused, size_t count, OrtNodeComputeInfo** kernels);
  void log(OrtLoggingLevel level, const std::string& message);

  Options options_;
  const OrtLogger* logger_;
  Artifacts artifacts_;
  std::shared_ptr<ArenaPool> arenas_ = std::make_shared<ArenaPool>();
};

}  // namespace tilegraph
