#include "artifact.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base64.h"
#include "cpu.h"
#include "file.h"
#include "sha256.h"

namespace tilegraph {
namespace {

constexpr const char* kAgain = "run tilegraph optimize again on the original model";

std::string read_string(const OrtNode* node, const char* name) {
  const OrtOpAttr* attribute = nullptr;
  OrtStatus* status = ort->Node_GetAttributeByName(node, name, &attribute);
  if (status) ort->ReleaseStatus(status);
  if (status || !attribute) return "";
  size_t length = 0;
  // Fails for want of room, and says how much is needed.
  if (OrtStatus* s = ort->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, nullptr, 0, &length)) ort->ReleaseStatus(s);
  if (length == 0) return "";
  std::string value(length, '\0');
  check(ort->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, value.data(), length, &length));
  value.resize(length);
  return value;
}

int64_t read_int(const OrtNode* node, const char* name, int64_t otherwise) {
  const OrtOpAttr* attribute = nullptr;
  OrtStatus* status = ort->Node_GetAttributeByName(node, name, &attribute);
  if (status) ort->ReleaseStatus(status);
  if (status || !attribute) return otherwise;
  int64_t value = 0;
  size_t length = 0;
  check(ort->ReadOpAttr(attribute, ORT_OP_ATTR_INT, &value, sizeof value, &length));
  return value;
}

bool stays_inside(const std::string& path) {
  if (path.empty() || path[0] == '/' || path.find('\0') != std::string::npos) return false;
  size_t start = 0;
  while (start <= path.size()) {
    size_t end = std::min(path.find('/', start), path.size());
    if (path.compare(start, end - start, "..") == 0) return false;
    start = end + 1;
  }
  return true;
}

void check_path(const ContextNode& node, const char* what, const std::string& path) {
  if (!stays_inside(path))
    throw Error(ORT_INVALID_GRAPH, cat(node.node, ": ", what, " is '", path,
                                       "', which is not a relative path inside the model's folder; ", kAgain));
}

std::string base_folder(const ContextNode& node, const Options& options) {
  if (!node.model_path.empty()) return folder_of(node.model_path);
  if (options.context_path.empty())
    throw Error(ORT_INVALID_GRAPH,
                cat(node.node, ": the model was given as bytes, so the folder with its compiled library is not known; load it "
                    "by path, set the session option ep.context_file_path, or write it with tilegraph optimize --embed"));
  struct stat info;
  bool folder = stat(options.context_path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  return folder ? options.context_path : folder_of(options.context_path);
}

void check_hash(const std::string& what, const std::string& have, const std::string& want) {
  if (have != want)
    throw Error(ORT_INVALID_GRAPH, cat(what, " was changed or damaged: its SHA-256 is ", have, ", the model says ",
                                       want.empty() ? "nothing" : want, "; copy the whole folder again, or ", kAgain));
}

}  // namespace

ContextNode read_context_node(const OrtNode* node, const OrtGraph* graph) {
  ContextNode context;
  const char* name = nullptr;
  check(ort->Node_GetName(node, &name));
  context.partition = read_string(node, "partition_name");
  context.node = cat("TileGraph node '", name ? name : "", "' (partition '", context.partition, "')");
  context.embed_mode = read_int(node, "embed_mode", 1);
  context.main_context = read_int(node, "main_context", 1);
  context.cache_context = read_string(node, "ep_cache_context");
  context.notes = read_string(node, "notes");
  const ORTCHAR_T* path = nullptr;
  check(ort->Graph_GetModelPath(graph, &path));
  if (path) context.model_path = path;
  if (context.embed_mode != 0 && context.embed_mode != 1)
    throw Error(ORT_INVALID_GRAPH, cat(context.node, ": embed_mode is ", context.embed_mode, ", must be 0 or 1; ", kAgain));
  return context;
}

std::shared_ptr<Artifact> Artifacts::open(std::shared_ptr<Manifest> manifest, const Notes& notes, std::string_view image,
                                          const std::string& origin) {
  const LibrarySpec& spec = manifest->library();
  check_hash(cat("compiled library '", origin, "'"), sha256_hex(image), notes.library_sha256);
  if (spec.sha256 != notes.library_sha256 || spec.bytes != image.size())
    throw Error(ORT_INVALID_GRAPH,
                cat("compiled library '", origin, "' is not the one that its manifest describes (", image.size(),
                    " bytes, expected ", spec.bytes, "); the folder mixes files of different runs: ", kAgain));
  if (std::string lacks = cpu_lacks(spec.isa, spec.features); !lacks.empty())
    throw Error(ORT_NOT_IMPLEMENTED, cat("compiled library '", origin, "' cannot run on this CPU: ", lacks,
                                         "; run tilegraph optimize on this machine, or for it with --mcpu"));
  auto artifact = std::make_shared<Artifact>();
  artifact->library = load_library(image, notes.library_sha256, options_.loader, origin);
  artifact->manifest = std::move(manifest);
  return artifact;
}

void Artifacts::check_expected(const ContextNode& node, std::map<std::string, std::string> parts) const {
  if (options_.expect_sha256.empty()) return;
  if (node.model_path.empty())
    throw Error(ORT_INVALID_GRAPH, cat(node.node, ": the model was given as bytes, so expect_sha256 cannot be checked; load "
                                       "it by path, or compare the digest of the bytes yourself"));
  std::string found = sha256_of_file(node.model_path, "model");
  if (!parts.empty()) {
    size_t slash = node.model_path.rfind('/');
    std::string name = slash == std::string::npos ? node.model_path : node.model_path.substr(slash + 1);
    parts[name] = found;
    std::string data = node.model_path + ".data";
    struct stat info;
    if (stat(data.c_str(), &info) == 0) parts[name + ".data"] = sha256_of_file(data, "weights");
    std::string lines;
    for (const auto& [file, digest] : parts) lines += cat(digest, "  ", file, "\n");
    found = sha256_hex(lines);
  }
  if (found != options_.expect_sha256)
    throw Error(ORT_INVALID_GRAPH, cat("'", node.model_path, "' is not the model that expect_sha256 names: its SHA-256 is ", found,
                                       ", expected ", options_.expect_sha256, "; do not load it, get it again from where it was made"));
}

std::shared_ptr<Artifact> Artifacts::open_folder(const ContextNode& node, const Notes& notes) {
  check_path(node, "ep_cache_context", node.cache_context);
  check_path(node, "the manifest of its notes", notes.manifest_file);
  std::string folder = base_folder(node, options_);
  std::string manifest_path = cat(folder, "/", notes.manifest_file), library_path = cat(folder, "/", node.cache_context);
  std::string manifest_text = read_file(manifest_path, kMaxManifestBytes, cat(node.node, ": manifest"));
  check_hash(cat("manifest '", manifest_path, "'"), sha256_hex(manifest_text), notes.manifest_sha256);
  auto manifest = Manifest::parse(manifest_text, cat("manifest '", manifest_path, "'"));
  std::string image = read_file(library_path, kMaxLibraryBytes, cat(node.node, ": compiled library"));
  if (!options_.expect_sha256.empty())
    check_expected(node, {{notes.manifest_file, sha256_hex(manifest_text)}, {node.cache_context, sha256_hex(image)}});
  return open(std::move(manifest), notes, image, library_path);
}

void Artifacts::add_embedded(const std::vector<ContextNode>& nodes) {
  for (const ContextNode& node : nodes) {
    if (node.embed_mode != 1 || node.main_context != 1) continue;
    std::string key = sha256_hex(node.notes);
    if (embedded_.contains(key)) continue;
    Notes notes = parse_notes(node.notes, node.node);
    if (!notes.manifest)
      throw Error(ORT_INVALID_GRAPH, cat(node.node, ": embed_mode is 1, but notes hold no manifest; ", kAgain));
    auto image = base64_decode(node.cache_context);
    if (!image || image->empty())
      throw Error(ORT_INVALID_GRAPH, cat(node.node, ": ep_cache_context does not hold a library in base64; ", kAgain));
    check_expected(node, {});
    embedded_[key] = open(notes.manifest, notes, *image, cat("embedded in ", node.node));
  }
}

std::shared_ptr<Artifact> Artifacts::find(const ContextNode& node) {
  if (node.embed_mode == 0) {
    std::string key = cat(node.model_path, '\0', node.cache_context, '\0', node.notes);
    auto& artifact = folders_[key];
    if (!artifact) {
      Notes notes = parse_notes(node.notes, node.node);
      if (notes.manifest_file.empty())
        throw Error(ORT_INVALID_GRAPH, cat(node.node, ": embed_mode is 0, but notes name no manifest; ", kAgain));
      artifact = open_folder(node, notes);
    }
    return artifact;
  }
  if (node.main_context == 1) return embedded_.at(sha256_hex(node.notes));
  std::shared_ptr<Artifact> found;
  for (const auto& [key, artifact] : embedded_) {
    if (!artifact->manifest->has_program(node.partition)) continue;
    if (found)
      throw Error(ORT_INVALID_GRAPH, cat(node.node, ": more than one embedded library has this partition; ", kAgain));
    found = artifact;
  }
  if (!found)
    throw Error(ORT_INVALID_GRAPH, cat(node.node, ": no node with main_context 1 carries this partition's library; ", kAgain));
  return found;
}

}  // namespace tilegraph
