#include "halftone/data/text_source.h"

#include <algorithm>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/packed_file.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr int64_t kLargeDocument = int64_t{256} << 20;
constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

bool blank(std::string_view line) { return line.find_first_not_of(" \t") == std::string_view::npos; }

void visit_text(std::string_view text, const DocumentVisitor& visit) {
  Document document;
  document.text = text;
  visit(document);
}

void strip_mark(std::string_view& text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
}

}  // namespace

TextSplit parse_text_split(const std::string& name) {
  if (name == "file") return TextSplit::file;
  if (name == "line") return TextSplit::line;
  if (name == "blank_line") return TextSplit::blank_line;
  fail("dataloader.text_split = \"{}\": expected file, line or blank_line", name);
}

TextSource::TextSource(FileList files, const SourceOptions& options)
    : DocumentSource(std::move(files), options.on_bad_line == "skip"),
      split_(parse_text_split(options.text_split)),
      longest_(options.max_document_bytes) {
  const auto cut = [&](const SourceFile& file) {
    return split_ != TextSplit::file && compression_of_bytes(first_bytes(file.path)) == Compression::none;
  };
  if (!options.streamed) shards_ = make_shards(files_, cut);
  if (split_ != TextSplit::file) return;
  const auto largest = std::max_element(files_.files.begin(), files_.files.end(), [](auto& a, auto& b) { return a.size < b.size; });
  if (largest == files_.files.end() || largest->size < kLargeDocument) return;
  log_warning(
      "{}: its {} MB are one document (dataloader.text_split = \"file\"), and tokenising it takes three to seven times as much memory; "
      "line and blank_line read files piece by piece",
      largest->path, largest->size / 1'000'000);
}

bool TextSource::is_text(std::string_view line, const BadLine& place, const DocumentVisitor& visit) const {
  const size_t valid = valid_utf8_prefix(line);
  if (valid == line.size()) return true;
  BadLine bad = place;
  bad.reason = not_utf8(line, valid);
  bad_line(bad, visit);
  return false;
}

void TextSource::read_lines(const SourceFile& file, LineReader reader, int64_t end, const DocumentVisitor& visit) const {
  for (std::string_view line; reader.next(line) && reader.line_offset() < end;) {
    if (reader.line_offset() == 0) strip_mark(line);
    if (!blank(line) && is_text(line, {file.path, reader.line_offset(), {}, reader.line_number()}, visit)) visit_text(line, visit);
  }
}

// A piece that does not start the file begins after the first blank line that starts in it or later, and every piece continues to the
// first blank line that starts at its end or later: the same line, so that nothing is lost or read twice. A piece without a blank line is
// empty.
void TextSource::read_paragraphs(const SourceFile& file, LineReader reader, int64_t begin, int64_t end,
                                 const DocumentVisitor& visit) const {
  std::string paragraph;
  bool inside = begin == 0;
  for (std::string_view line; reader.next(line);) {
    if (reader.line_offset() == 0) strip_mark(line);
    if (!inside && reader.line_offset() >= end) return;
    if (blank(line)) {
      if (!paragraph.empty()) visit_text(paragraph, visit);
      paragraph.clear();
      if (reader.line_offset() >= end) return;
      inside = true;
    } else if (inside && is_text(line, {file.path, reader.line_offset(), {}, reader.line_number()}, visit)) {
      if (!paragraph.empty()) paragraph += '\n';
      paragraph += line;
      if (static_cast<int64_t>(paragraph.size()) > longest_)
        fail_too_long(file.path, line_number(file.path, reader.line_offset()), "paragraph", longest_);
    }
  }
  if (!paragraph.empty()) visit_text(paragraph, visit);
}

void TextSource::read_whole(const SourceFile& file, TextInput input, const DocumentVisitor& visit) const {
  do {
    if (static_cast<int64_t>(input.text().size()) > longest_) fail_too_long(file.path, 1, "document (text_split = \"file\")", longest_);
  } while (input.fill());
  const std::string_view all = input.text();
  std::string_view text = all;
  strip_mark(text);
  if (is_valid_utf8(text)) return visit_text(text, visit);
  std::string kept;
  int64_t number = 0;
  for (size_t at = all.size() - text.size(); at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size() - 1) + 1;
    const std::string_view line = all.substr(at, end - at);
    if (is_text(line, {file.path, static_cast<int64_t>(at), {}, ++number}, visit)) kept += line;
    at = end;
  }
  if (!kept.empty()) visit_text(kept, visit);
}

std::string TextSource::options() const {
  return split_ == TextSplit::file ? "split=file" : split_ == TextSplit::line ? "split=line" : "split=blank_line";
}

void TextSource::read_shard(int64_t shard, const DocumentVisitor& visit) const {
  for (const Piece& piece : shards_.at(static_cast<size_t>(shard))) read_piece(piece, visit);
}

void TextSource::read_file(size_t file, const DocumentVisitor& visit) const { read_piece({file, 0, files_.files.at(file).size}, visit); }

void TextSource::read_piece(const Piece& piece, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files[piece.file];
  const int64_t end = piece.begin == 0 && piece.end == file.size ? kEnd : piece.end;
  const auto read = [&](LineReader reader) {
    split_ == TextSplit::line ? read_lines(file, std::move(reader), end, visit)
                              : read_paragraphs(file, std::move(reader), piece.begin, end, visit);
  };
  if (piece.begin > 0) return read(LineReader(file.path, piece.begin, piece.end, longest_));
  TextInput input(file.path);
  input.fill();
  refuse_packed(input.text(), file.path, "plain text");
  split_ == TextSplit::file ? read_whole(file, std::move(input), visit) : read(LineReader(std::move(input), longest_));
}

}  // namespace halftone
