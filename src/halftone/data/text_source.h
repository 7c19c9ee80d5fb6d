#pragma once
#include <memory>
#include <string>
#include <vector>

#include "halftone/data/line_reader.h"
#include "halftone/data/shards.h"
#include "halftone/data/source.h"

namespace halftone {

enum class TextSplit { file, line, blank_line };
TextSplit parse_text_split(const std::string& name);

// Text files, plain or compressed (byte_stream.h), local or remote. A document is a file, a non-blank line, or a run of lines between
// blank ones (blank: spaces and tabs only). A byte order mark at the start of a file is not part of the text. A line that is not UTF-8 is
// bad.
class TextSource : public DocumentSource {
 public:
  TextSource(FileList files, const SourceOptions& options);
  std::string kind() const override { return "text"; }
  std::string options() const override;
  int64_t shard_count() const override { return static_cast<int64_t>(shards_.size()); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override;
  void read_file(size_t file, const DocumentVisitor& visit) const override;

 private:
  void read_piece(const Piece& piece, const DocumentVisitor& visit) const;
  bool is_text(std::string_view line, const BadLine& place, const DocumentVisitor& visit) const;
  void read_lines(const SourceFile& file, LineReader reader, int64_t end, const DocumentVisitor& visit) const;
  void read_paragraphs(const SourceFile& file, LineReader reader, int64_t begin, int64_t end, const DocumentVisitor& visit) const;
  void read_whole(const SourceFile& file, TextInput input, const DocumentVisitor& visit) const;
  TextSplit split_;
  int64_t longest_;
  std::vector<std::vector<Piece>> shards_;
};

}  // namespace halftone
