#include "halftone/cli/data_rows.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "halftone/base/error.h"
#include "halftone/data/loader.h"
#include "halftone/data/token_store.h"
#include "halftone/data/unicode.h"
#include "halftone/train/console.h"
#include "halftone/train/run_data.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDocumentsShown = 6;
constexpr size_t kFirstLines = 5, kLastLines = 2;  // of a document's text

// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "halftone_data_XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, "cannot create a folder in {}; set TMPDIR to a writable one",
          fs::temp_directory_path().string());
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A stretch of text with or without a loss.
struct Stretch {
  std::string bytes;
  bool learned;
};

// A printed character, or an escape.
struct Cell {
  std::string text;
  bool learned;
};

void add_token(std::vector<Stretch>& out, const Tokenizer& tokenizer, int64_t id, bool learned) {
  if (out.empty() || out.back().learned != learned) out.push_back({"", learned});
  out.back().bytes += tokenizer.token_bytes(static_cast<int32_t>(id));
}

// The document at [begin, end) of the row: its tokens, and the prediction behind the last if that is not shown with the next document.
std::vector<Stretch> stretches(const ModelRow& row, size_t begin, size_t end, bool joined, const Tokenizer& tokenizer) {
  std::vector<Stretch> out;
  const auto has_loss = [&](size_t at) { return row.labels[at] != kIgnoredLabel; };
  add_token(out, tokenizer, row.tokens[begin], joined && begin > 0 && has_loss(begin - 1));
  for (size_t at = begin; at + 1 < end; ++at) add_token(out, tokenizer, row.tokens[at + 1], has_loss(at));
  const bool next_shows_it = joined && end < static_cast<size_t>(row.filled);
  if (has_loss(end - 1) && !next_shows_it) add_token(out, tokenizer, row.labels[end - 1], true);
  return out;
}

std::vector<Cell> cells_of(const std::vector<Stretch>& stretches, bool marks) {
  std::vector<Cell> out;
  for (const Stretch& stretch : stretches) {
    if (marks && !stretch.learned) out.push_back({"[-", false});
    const std::string text = printable(stretch.bytes);
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      next_code_point(text, at);
      out.push_back({text.substr(begin, at - begin), stretch.learned});
    }
    if (marks && !stretch.learned) out.push_back({"-]", false});
  }
  return out;
}

size_t columns_of(const Cell& cell) {
  const auto first = static_cast<unsigned char>(cell.text.front());
  return first < 0x80 ? cell.text.size() : first < 0xE3 ? 1 : 2;  // most characters from U+3000 on are wide
}

std::string line_of(const std::vector<Cell>& cells, size_t begin, size_t end, bool colors) {
  std::string out;
  for (size_t i = begin; i < end; ++i) {
    if (colors && (i == begin || cells[i].learned != cells[i - 1].learned)) out += cells[i].learned ? "\x1b[32m" : "\x1b[90m";
    out += cells[i].text;
  }
  return colors && end > begin ? out + "\x1b[0m" : out;
}

std::string wrapped(const std::vector<Cell>& cells, const Terminal& terminal) {
  const std::string indent(6, ' ');
  const size_t width = static_cast<size_t>(std::max(terminal.width - 8, 20));
  std::vector<std::pair<size_t, size_t>> lines;
  for (size_t at = 0; at < cells.size();) {
    size_t end = at;
    size_t columns = columns_of(cells[end++]);
    while (end < cells.size() && columns + columns_of(cells[end]) <= width) columns += columns_of(cells[end++]);
    lines.emplace_back(at, end);
    at = end;
  }
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines.size() > kFirstLines + kLastLines + 1 && i == kFirstLines) {
      const size_t next = lines.size() - kLastLines;
      out += fmt::format("{}... {} characters ...\n", indent, with_commas(static_cast<int64_t>(lines[next].first - lines[i].first)));
      i = next;
    }
    out += indent + line_of(cells, lines[i].first, lines[i].second, terminal.colors) + "\n";
  }
  return out;
}

}  // namespace

ModelRow::ModelRow(int64_t seq_len) : filled(seq_len) {
  const auto S = static_cast<size_t>(seq_len);
  tokens.resize(S), labels.resize(S), positions.resize(S), doc_start.resize(S);
}

Terminal find_terminal() {
  Terminal out;
  out.colors = colors_wanted(false);
  const char* columns = std::getenv("COLUMNS");
  winsize size{};
  if (columns != nullptr && std::atoi(columns) > 0) {
    out.width = std::atoi(columns);
  } else if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    out.width = size.ws_col;
  }
  out.width = std::clamp(out.width, 40, 200);
  // The locale of the environment, without making it the program's: numbers keep their points.
  const locale_t locale = ::newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale != nullptr) {
    out.unicode = std::string_view(::nl_langinfo_l(CODESET, locale)) == "UTF-8";
    ::freelocale(locale);
  }
  return out;
}

std::string printable(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string out;
  for (size_t at = 0; at < valid.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(valid, at);
    // U+0080 to U+009F control terminals as escapes do; U+202A and following reverse the direction of lines.
    if (c == '\n' || c == '\t' || c == '\r') {
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
    } else if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if ((c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069)) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out.append(valid, begin, at - begin);
    }
  }
  return out;
}

std::vector<ModelRow> indexed_rows_of(const DocumentSource& documents, const TextCodec& codec, const RowOptions& options, int64_t n) {
  const ScratchFolder folder;
  RowSequence rows(open_token_store(documents, codec, folder.path(), 1), options);
  std::vector<ModelRow> out;
  for (int64_t r = 0; r < std::min(n, rows.rows(0)); ++r) {
    ModelRow row(options.seq_len);
    row.filled = rows.fill({0, r}, row.view());
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<ModelRow> loader_rows(const JobConfig& config, const Tokenizer& tokenizer, int64_t n) {
  JobConfig one = config;
  one.training.local_batch_size = 1;  // rows of a step are the same however they are split
  const auto loader = make_training_loader(one, tokenizer, rows_per_step(config.training), 0, 1);
  std::vector<ModelRow> out;
  while (static_cast<int64_t>(out.size()) < n && loader->has_next()) {
    const Batch batch = loader->next();
    const int64_t S = config.training.seq_len;
    ModelRow row(S);
    std::copy_n(batch.tokens.const_data_ptr<int64_t>(), S, row.tokens.begin());
    std::copy_n(batch.labels.const_data_ptr<int64_t>(), S, row.labels.begin());
    std::copy_n(batch.positions.const_data_ptr<int32_t>(), S, row.positions.begin());
    std::copy_n(batch.doc_start.const_data_ptr<int32_t>(), S, row.doc_start.begin());
    if (batch.padding.defined())
      row.filled = S - std::count(batch.padding.const_data_ptr<bool>(), batch.padding.const_data_ptr<bool>() + S, true);
    out.push_back(std::move(row));
  }
  return out;
}

std::string row_text(const ModelRow& row, int64_t number, bool joined, const Tokenizer& tokenizer, const Terminal& terminal) {
  const auto filled = static_cast<size_t>(row.filled);
  std::vector<size_t> starts;
  for (size_t at = 0; at < filled; ++at)
    if (at == 0 || row.doc_start[at] != row.doc_start[at - 1]) starts.push_back(at);
  const int64_t S = static_cast<int64_t>(row.tokens.size());
  const int64_t learned = S - std::count(row.labels.begin(), row.labels.end(), kIgnoredLabel);
  std::string out =
      fmt::format("  row {}: {} tokens, {} with a loss ({:.1f}%), {} padding, {} document{}\n", number, with_commas(row.filled),
                  with_commas(learned), 100.0 * static_cast<double>(learned) / static_cast<double>(S), with_commas(S - row.filled),
                  starts.size(), starts.size() == 1 ? "" : "s");
  for (size_t d = 0; d < starts.size(); ++d) {
    if (d == kDocumentsShown && starts.size() > kDocumentsShown + 1) {
      out += fmt::format("    ... and {} more documents\n", starts.size() - d);
      break;
    }
    const size_t begin = starts[d], end = d + 1 < starts.size() ? starts[d + 1] : filled;
    out += fmt::format("    tokens {} to {}, positions {} to {}\n", begin, end - 1, row.positions[begin], row.positions[end - 1]);
    out += wrapped(cells_of(stretches(row, begin, end, joined, tokenizer), !terminal.colors), terminal);
  }
  return out;
}

}  // namespace halftone
