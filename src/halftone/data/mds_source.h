#pragma once
#include <map>
#include <string>

#include "halftone/data/mds_format.h"
#include "halftone/data/source.h"

namespace halftone {

// Shards of MosaicML streaming (mds_format.h) below `pattern`: a folder with index.json, or with several below it. Columns are chosen as
// the fields of JSON lines: the text under text_key (str); else ids under input_ids or tokens; else a conversation (json).
class MdsSource : public DocumentSource {
 public:
  // Error naming the columns if a shard has none of these.
  explicit MdsSource(const SourceOptions& options);
  std::string kind() const override { return "mds"; }
  std::string options() const override { return "text_key=" + options_.text_key; }
  int64_t shard_count() const override { return static_cast<int64_t>(files_.files.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override { read_file(static_cast<size_t>(shard), visit); }
  void read_file(size_t file, const DocumentVisitor& visit) const override;

 private:
  enum class Use { text, ids, conversation };
  struct Choice {
    size_t column;
    Use use;
  };
  Choice choose(const MdsShard& shard, const std::string& path) const;
  SourceOptions options_;
  std::map<std::string, MdsShard> shards_;  // by path
};

}  // namespace halftone
