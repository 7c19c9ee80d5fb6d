#pragma once
#include <algorithm>
#include <string>
#include <vector>

namespace halftone {

// Columns of text, two blanks apart; the first row is the header.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) { row(std::move(head)); }
  void row(std::vector<std::string> cells) {
    if (widths_.size() < cells.size()) widths_.resize(cells.size());
    for (size_t i = 0; i < cells.size(); ++i) widths_[i] = std::max(widths_[i], cells[i].size());
    rows_.push_back(std::move(cells));
  }
  std::string text() const {
    std::string out;
    for (const auto& cells : rows_) {
      std::string line = " ";
      for (size_t i = 0; i < cells.size(); ++i) line += " " + cells[i] + std::string(widths_[i] - cells[i].size() + 1, ' ');
      while (line.ends_with(' ')) line.pop_back();
      out += line + '\n';
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> widths_;
};

}  // namespace halftone
