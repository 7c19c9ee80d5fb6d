#include "halftone/parallel/schedule_drawing.h"

#include <fmt/format.h>

#include <algorithm>

namespace halftone::parallel {
namespace {

// The rank identifies the stage if each rank has one.
std::string label(const Schedule& s, const Action& a) {
  const std::string text = action_text(a);
  return s.stages == static_cast<int64_t>(s.ranks.size()) ? text.substr(text.find(static_cast<char>(a.kind))) : text;
}

}  // namespace

std::string schedule_text(const Schedule& s, const Timeline& t) {
  size_t width = 0;
  for (const auto& rank : s.ranks)
    for (const Action& a : rank) width = std::max(width, label(s, a).size() + 1);
  std::string text;
  for (size_t r = 0; r < s.ranks.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < s.ranks[r].size(); ++i) {
      const auto [begin, end] = t.times[r][i];
      line.resize(static_cast<size_t>(begin) * width, ' ');
      line += label(s, s.ranks[r][i]);
      line.resize(static_cast<size_t>(end) * width - 1, '-');
      if (s.ranks[r][i].kind != Kind::full)
        std::replace(line.begin() + static_cast<std::ptrdiff_t>(begin * static_cast<int64_t>(width)), line.end(), '-', ' ');
    }
    text += fmt::format("rank {:<3} {}\n", r, line.substr(0, line.find_last_not_of(' ') + 1));
  }
  text += fmt::format("F forward, B backward{}, each with its micro-batch{}\n",
                      std::any_of(s.ranks.begin(), s.ranks.end(),
                                  [](const auto& rank) {
                                    return std::any_of(rank.begin(), rank.end(), [](const Action& a) { return a.kind == Kind::input; });
                                  })
                          ? ", or its gradients I of inputs and W of weights"
                          : "",
                      s.stages > static_cast<int64_t>(s.ranks.size()) ? " and, before it, the stage" : "");
  return text;
}

std::string schedule_svg(const Schedule& s, const Timeline& t, const std::string& title) {
  constexpr int64_t kUnit = 36, kHeight = 28, kLeft = 60, kTop = 34;
  const auto ranks = static_cast<int64_t>(s.ranks.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<title>{}</title>\n"
      "<text x=\"8\" y=\"20\" font-size=\"13\">{}</text>\n",
      kLeft + t.length * kUnit + 8, kTop + ranks * kHeight + 8, title, title);
  for (size_t r = 0; r < s.ranks.size(); ++r) {
    const int64_t y = kTop + static_cast<int64_t>(r) * kHeight;
    svg += fmt::format("<text x=\"8\" y=\"{}\">rank {}</text>\n", y + 17, r);
    for (size_t i = 0; i < s.ranks[r].size(); ++i) {
      const Action& a = s.ranks[r][i];
      const auto [begin, end] = t.times[r][i];
      const char* colour = a.kind == Kind::forward  ? "#9ecae1"
                           : a.kind == Kind::input  ? "#fdd0a2"
                           : a.kind == Kind::weight ? "#c7e9c0"
                                                    : "#fdae6b";
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#444\"/><text x=\"{}\" y=\"{}\" "
          "text-anchor=\"middle\">{}</text>\n",
          kLeft + begin * kUnit, y, (end - begin) * kUnit, kHeight - 4, colour, kLeft + (begin + end) * kUnit / 2, y + 16, label(s, a));
    }
  }
  return svg + "</svg>\n";
}

}  // namespace halftone::parallel
