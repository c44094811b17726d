// What an EPContext node refers to: a checked manifest and a loaded library.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "library.h"
#include "manifest.h"
#include "options.h"

namespace tilegraph {

// The attributes of one EPContext node; `node` names it in messages.
struct ContextNode {
  std::string node;
  std::string partition;
  int64_t embed_mode = 0;
  int64_t main_context = 1;
  std::string cache_context;
  std::string notes;
  std::string model_path;  // as the user passed it; empty for a model given as bytes
};

ContextNode read_context_node(const OrtNode* node, const OrtGraph* graph);

struct Artifact {
  std::shared_ptr<Manifest> manifest;
  std::shared_ptr<Library> library;
};

// A session's artifacts, each opened once. Throws NO_SUCHFILE, INVALID_GRAPH (damaged or foreign content, a path that
// leaves the model's folder) or NOT_IMPLEMENTED (another CPU).
class Artifacts {
 public:
  explicit Artifacts(const Options& options) : options_(options) {}

  // Makes the libraries known that the nodes of one graph carry themselves; call it before `find`.
  void add_embedded(const std::vector<ContextNode>& nodes);
  std::shared_ptr<Artifact> find(const ContextNode& node);

 private:
  // The option expect_sha256: tilegraph/spec/digest.py says what is counted. `parts` are digests by file name.
  void check_expected(const ContextNode& node, std::map<std::string, std::string> parts) const;
  std::shared_ptr<Artifact> open_folder(const ContextNode& node, const Notes& notes);
  std::shared_ptr<Artifact> open(std::shared_ptr<Manifest> manifest, const Notes& notes, std::string_view image,
                                 const std::string& origin);

  Options options_;
  std::map<std::string, std::shared_ptr<Artifact>> folders_;
  std::map<std::string, std::shared_ptr<Artifact>> embedded_;  // by the library's and the manifest's content
};

}  // namespace tilegraph
