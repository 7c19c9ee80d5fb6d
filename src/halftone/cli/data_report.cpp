#include "halftone/cli/data_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/cli/text_table.h"
#include "halftone/data/row_packing.h"

namespace halftone {
namespace {

constexpr int kMostBins = 16;

double part(int64_t some, int64_t all) { return all == 0 ? 0 : static_cast<double>(some) / static_cast<double>(all); }
std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string n_of(int64_t n, const char* what) { return fmt::format("{} {}{}", with_commas(n), what, n == 1 ? "" : "s"); }

std::string read_text(const SourceReport& r) {
  const Inspection& f = r.look;
  const std::string all = fmt::format("{} in {}", bytes_text(r.bytes), n_of(r.files, "file"));
  if (f.whole) return all + ", read whole";
  const char* what = f.by_files ? "files" : "parts";
  return fmt::format("{}; read {} of text in {} of {} {}, spread evenly{}; --all reads everything", all, bytes_text(f.text_bytes),
                     with_commas(f.parts_read), with_commas(f.parts), what, f.cut ? ", some only from their start" : "");
}

// Marks after which characters a text for the report is cut.
std::string quoted(const std::string& text) {
  std::string out = printable(text);
  if (out.ends_with("\xEF\xBF\xBD")) out.resize(out.size() - 3);  // a character that the cut split
  return fmt::format("\"{}...\"", out);
}

class Report {
 public:
  Report(const SourceReport& report, const Terminal& terminal) : r_(report), f_(report.look), terminal_(terminal) {}

  std::string text() {
    out_ = fmt::format("{}: {}, {}\n", r_.name, r_.kind, read_text(r_));
    if (r_.others > 0) line("", "", fmt::format("skipped {} of other kinds in the folder", n_of(r_.others, "file")));
    if (!r_.tokenizer.empty()) out_ += fmt::format("tokenizer: {}\n", r_.tokenizer);
    size();
    if (f_.lengths.count() > 0) lengths();
    if (f_.conversations > 0) conversations();
    checks();
    if (r_.packing) rows();
    return out_;
  }

 private:
  void title(const std::string& title) { out_ += fmt::format("\n{}\n", title); }
  void line(const std::string& what, const std::string& figure, const std::string& note = "") {
    std::string row = fmt::format("  {:<20}{:>16}  {}", what, figure, note);
    row.erase(row.find_last_not_of(' ') + 1);
    out_ += row + "\n";
  }
  // A count of documents with its share; the note only if there are any.
  void count(const std::string& what, int64_t n, int64_t all, const std::string& note) {
    line(what, with_commas(n), n == 0 ? "" : fmt::format("{:>5}  {}", percent(part(n, all)), note));
  }

  void size() {
    const double share = f_.share();
    const auto total = [&](int64_t n) {
      return share == 1 || share == 0 ? ""
                                      : fmt::format("about {} in all", with_commas(static_cast<int64_t>(static_cast<double>(n) / share)));
    };
    title(f_.whole ? "Size" : "Size of the part read");
    line("documents", with_commas(f_.documents), total(f_.documents));
    line("characters", with_commas(f_.characters));
    line("bytes of text", with_commas(f_.text_bytes), total(f_.text_bytes));
    if (r_.tokenizer.empty()) {
      line("tokens", "-", "with --tokenizer FOLDER");
      return;
    }
    line("tokens", with_commas(f_.tokens), total(f_.tokens));
    if (f_.text_bytes > 0) line("bytes per token", fmt::format("{:.2f}", part(f_.text_bytes, f_.tokens)));
  }

  void lengths() {
    const LengthCounts& l = f_.lengths;
    title(r_.tokenizer.empty() ? "Characters in a document" : "Tokens in a document");
    std::string quantiles;
    for (const auto& [name, q] :
         {std::pair{"1%", 0.01}, {"10%", 0.1}, {"25%", 0.25}, {"50%", 0.5}, {"75%", 0.75}, {"90%", 0.9}, {"99%", 0.99}})
      quantiles += fmt::format("{}{}: {}", quantiles.empty() ? "" : ", ", name, with_commas(l.quantile(q)));
    out_ += fmt::format("  shortest {}, mean {}, longest {}; percentiles {}\n", with_commas(l.smallest()),
                        with_commas(static_cast<int64_t>(l.mean() + 0.5)), with_commas(l.largest()), quantiles);
    out_ += histogram(l.bins(kMostBins), terminal_);
  }

  void conversations() {
    title("Conversations");
    count("conversations", f_.conversations, f_.documents, "");
    line("learned turns", with_commas(f_.answers),
         fmt::format("stretches with a loss: {} to {} each, mean {:.1f}", f_.answers_each.smallest(), f_.answers_each.largest(),
                     f_.answers_each.mean()));
    line("text with a loss", percent(part(f_.learned_bytes, f_.conversation_bytes)), "bytes of the conversations as rendered");
  }

  void checks() {
    title("Checks");
    if (!r_.tokenizer.empty()) line("tokens with a loss", percent(part(f_.learned_tokens, f_.tokens)));
    count("empty", f_.empty, f_.documents, "dropped by a run");
    duplicates("exact duplicates", f_.exact, f_.exact_first, "the same text as an earlier document");
    duplicates("near duplicates", f_.near, f_.near_first,
               fmt::format("Jaccard similarity of {} or more to an earlier document ({} hashes of {} words)", kNearDuplicate, kPermutations,
                           kShingleWords));
    count("not UTF-8", f_.not_utf8, f_.documents, "");
    line("bad lines", with_commas(f_.bad.count),
         f_.bad.count == 0 ? ""
         : r_.stops_at_bad ? "a run stops at the first: dataloader.on_bad_line = \"skip\" skips them"
                           : "skipped by a run");
    for (const std::string& place : f_.bad.places()) out_ += fmt::format("    {}\n", printable(place));
    if (r_.tokenizer.empty()) return;
    if (r_.reads_special) {
      line("control tokens", "-", "read as tokens where texts spell them out: dataloader.special_tokens_in_text");
      return;
    }
    count("control tokens", f_.special_documents, f_.documents, "documents spell them out; read as plain text");
    for (const auto& [token, n] : f_.special) out_ += fmt::format("    {} in {}\n", printable(token), n_of(n, "document"));
  }

  void duplicates(const char* what, const SampledShare& share, const std::vector<Repeated>& first, const std::string& note) {
    const std::string sampled = share.whole() ? "" : fmt::format(" (in a sample of {})", n_of(share.documents(), "document"));
    count(what, share.found(), share.documents(), note + sampled);
    for (const Repeated& r : first) {
      out_ += r.earlier == 0
                  ? fmt::format("    document {}", with_commas(r.document))
                  : fmt::format("    document {}, {:.0f}% like {}", with_commas(r.document), 100 * r.similarity, with_commas(r.earlier));
      out_ += r.begin.empty() ? "\n" : fmt::format(": {}\n", quoted(r.begin));
    }
  }

  void rows() {
    const PackingFigures& p = *r_.packing;
    title(fmt::format("Rows of {} tokens, packing {}{}", with_commas(p.seq_len), p.packing,
                      p.some ? fmt::format(" (of the first {} documents)", with_commas(kMostPackedDocuments)) : ""));
    const bool concat = p.packing == "concat";
    line("rows", with_commas(p.rows), f_.whole ? "in one pass" : "from the part read");
    // best_fit splits text, but no conversation (row_packing.h).
    const char* fate = p.packing == "first_fit"                          ? "dropped: they do not fit into a row"
                       : p.packing == "none"                             ? "cut at the end of their row"
                       : p.packing == "best_fit" && f_.conversations > 0 ? "conversations are cut at the end of their row"
                                                                         : "continue in another row";
    count("longer documents", p.longer, f_.pieces, fate);
    line("padding", percent(part(p.padding, p.rows * p.seq_len)), "of the positions of the rows");
    line("left out", percent(part(p.left_out, p.units)), concat ? "of the tokens" : "of the predictions");
  }

  const SourceReport& r_;
  const Inspection& f_;
  const Terminal& terminal_;
  std::string out_;
};

nlohmann::ordered_json sampled_json(const SampledShare& share, const std::vector<Repeated>& first) {
  nlohmann::ordered_json out{
      {"found", share.found()}, {"compared", share.documents()}, {"share", share.share()}, {"first", nlohmann::ordered_json::array()}};
  for (const Repeated& r : first) {
    nlohmann::ordered_json one{{"document", r.document}};
    if (r.earlier != 0) one["earlier"] = r.earlier, one["similarity"] = r.similarity;
    one["begin"] = printable(r.begin);
    out["first"].push_back(std::move(one));
  }
  return out;
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  if (b < 1e6) return fmt::format("{:.1f} kB", b / 1e3);
  if (b < 1e9) return fmt::format("{:.1f} MB", b / 1e6);
  return b < 1e12 ? fmt::format("{:.1f} GB", b / 1e9) : fmt::format("{:.1f} TB", b / 1e12);
}

PackingFigures pack_figures(const Inspection& look, const RowOptions& options, const std::string& name) {
  PackingFigures p;
  p.packing = name, p.seq_len = options.seq_len;
  p.some = static_cast<int64_t>(look.entries.size()) < look.pieces;
  std::vector<int64_t> lengths;  // in predictions
  uint64_t end = 0;
  for (const DocumentEntry& entry : look.entries) {
    lengths.push_back(std::max<int64_t>(0, static_cast<int64_t>(entry.end - end) - 1));
    end = entry.end;
    p.units += lengths.back();
    p.longer += lengths.back() > p.seq_len ? 1 : 0;
  }
  int64_t used = 0;
  if (options.packing == Packing::concat) {
    p.units = static_cast<int64_t>(end);
    p.rows = p.units / (p.seq_len + 1);
    used = p.rows * (p.seq_len + 1);
  } else if (options.packing == Packing::concat_documents) {
    p.rows = p.units / p.seq_len;
    used = p.rows * p.seq_len;
  } else {
    const std::vector<PackedRow> rows = pack_rows(lengths, std::vector<bool>(lengths.size(), look.conversations == 0), options);
    p.rows = static_cast<int64_t>(rows.size());
    for (const PackedRow& row : rows)
      for (const PackedPart& document : row) used += document.n;
    p.padding = p.rows * p.seq_len - used;
  }
  p.left_out = p.units - used;
  return p;
}

std::string histogram(const std::vector<LengthCounts::Bin>& bins, const Terminal& terminal) {
  int64_t most = 1;
  std::vector<std::pair<std::string, std::string>> labels;
  size_t left = 0, right = 0;
  for (const LengthCounts::Bin& bin : bins) {
    most = std::max(most, bin.count);
    const std::string last = with_commas(bin.end - 1);
    labels.emplace_back(bin.end - bin.begin == 1 ? last : fmt::format("{} to {}", with_commas(bin.begin), last), with_commas(bin.count));
    left = std::max(left, labels.back().first.size()), right = std::max(right, labels.back().second.size());
  }
  const auto room = static_cast<double>(std::max<int64_t>(terminal.width - 8 - static_cast<int64_t>(left + right), 10));
  std::string out;
  for (size_t i = 0; i < bins.size(); ++i) {
    const double columns = room * static_cast<double>(bins[i].count) / static_cast<double>(most);
    std::string bar;
    if (terminal.unicode) {
      static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
      const auto eighths = std::max<int64_t>(static_cast<int64_t>(8 * columns + 0.5), bins[i].count > 0 ? 1 : 0);
      for (int64_t k = 0; k < eighths / 8; ++k) bar += "█";
      bar += kEighths[eighths % 8];
    } else {
      bar.assign(static_cast<size_t>(std::max<double>(columns + 0.5, bins[i].count > 0 ? 1 : 0)), '#');
    }
    out += fmt::format("  {:>{}}  {:>{}}{}{}\n", labels[i].first, left, labels[i].second, right, bar.empty() ? "" : "  ", bar);
  }
  return out;
}

std::string report_text(const SourceReport& report, const Terminal& terminal) { return Report(report, terminal).text(); }

nlohmann::ordered_json report_json(const SourceReport& r) {
  using Json = nlohmann::ordered_json;
  const Inspection& f = r.look;
  Json out{{"source", printable(r.name)},
           {"kind", r.kind},
           {"files", r.files},
           {"bytes", r.bytes},
           {"read",
            {{"whole", f.whole},
             {"by", f.by_files ? "files" : "shards"},
             {"parts", f.parts},
             {"parts_read", f.parts_read},
             {"cut", f.cut},
             {"share", f.share()},
             {"seconds", r.seconds}}},
           {"documents", f.documents},
           {"characters", f.characters},
           {"text_bytes", f.text_bytes}};
  if (!r.tokenizer.empty()) out["tokenizer"] = r.tokenizer, out["tokens"] = f.tokens, out["tokens_with_loss"] = f.learned_tokens;
  Json lengths{{"unit", r.tokenizer.empty() ? "characters" : "tokens"},
               {"count", f.lengths.count()},
               {"smallest", f.lengths.smallest()},
               {"mean", f.lengths.mean()},
               {"largest", f.lengths.largest()}};
  for (const auto& [name, q] :
       {std::pair{"p01", 0.01}, {"p10", 0.1}, {"p25", 0.25}, {"p50", 0.5}, {"p75", 0.75}, {"p90", 0.9}, {"p99", 0.99}})
    lengths[name] = f.lengths.quantile(q);
  lengths["histogram"] = Json::array();
  for (const LengthCounts::Bin& bin : f.lengths.bins(kMostBins))
    lengths["histogram"].push_back({{"begin", bin.begin}, {"end", bin.end}, {"count", bin.count}});
  out["lengths"] = std::move(lengths);
  out["empty"] = f.empty;
  out["exact_duplicates"] = sampled_json(f.exact, f.exact_first);
  out["near_duplicates"] = sampled_json(f.near, f.near_first);
  out["near_duplicates"]["method"] = {
      {"jaccard", kNearDuplicate}, {"shingle_words", kShingleWords}, {"permutations", kPermutations}, {"bands", kBands}};
  out["not_utf8"] = f.not_utf8;
  out["bad_lines"] = {{"count", f.bad.count}, {"first", Json::array()}};
  for (const std::string& place : f.bad.places()) out["bad_lines"]["first"].push_back(printable(place));
  out["control_tokens"] = {{"documents", f.special_documents}, {"first", Json::object()}};
  for (const auto& [token, n] : f.special) out["control_tokens"]["first"][printable(token)] = n;
  if (f.conversations > 0) {
    out["conversations"] = {
        {"count", f.conversations}, {"learned_turns", f.answers}, {"bytes", f.conversation_bytes}, {"bytes_with_loss", f.learned_bytes}};
  }
  if (r.packing) {
    const PackingFigures& p = *r.packing;
    out["rows"] = {{"packing", p.packing}, {"seq_len", p.seq_len}, {"rows", p.rows},        {"longer_documents", p.longer},
                   {"padding", p.padding}, {"units", p.units},     {"left_out", p.left_out}};
  }
  return out;
}

}  // namespace halftone
