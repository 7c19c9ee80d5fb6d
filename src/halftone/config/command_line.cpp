#include "halftone/config/command_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/base/utf8.h"
#include "halftone/config/names.h"

namespace halftone {
namespace {

std::string_view without_quotes(std::string_view v) {
  if (v.size() >= 2 && v.front() == v.back() && (v.front() == '"' || v.front() == '\'')) return v.substr(1, v.size() - 2);
  return v;
}

bool is_option(std::string_view arg) { return arg.starts_with("--") && arg.size() > 2; }

class Reader {
 public:
  Reader(std::span<const std::string> args, const ConfigIndex& index, std::vector<std::string>& problems, std::set<std::string>& refused)
      : args_(args), index_(index), problems_(problems), refused_(refused) {}

  std::vector<Override> read() {
    for (const std::string& arg : args_) {
      if (is_valid_utf8(arg)) continue;
      problems_.push_back(fmt::format("command line: expected UTF-8 text, found {}", shown(arg)));
      return {};
    }
    while (next_ < args_.size()) {
      const std::string& arg = args_[next_++];
      if (is_option(arg)) {
        read_option(arg);
      } else {
        problems_.push_back(fmt::format("command line: unexpected {}; expected --section.field value", shown(arg)));
      }
    }
    return std::move(overrides_);
  }

 private:
  void read_option(std::string_view arg) {
    const size_t equals = arg.find('=');
    has_inline_ = equals != std::string_view::npos;
    inline_ = has_inline_ ? arg.substr(equals + 1) : std::string_view{};
    std::string name(arg.substr(2, has_inline_ ? equals - 2 : std::string_view::npos));
    std::replace(name.begin(), name.end(), '-', '_');
    if (name == "config") name = "job.config_file";
    if (name == "device") name = "training.device";

    if (const FieldEntry* field = index_.find_field(name)) return read_field(*field, name);
    const std::string_view leaf = leaf_of(name), section = section_of(name);
    if (leaf.starts_with("no_")) {
      const FieldEntry* field = index_.find_field(std::string(section) + "." + std::string(leaf.substr(3)));
      if (field && is_bool(*field)) {
        if (has_inline_) return refuse(name, "takes no value");
        return add(*field, false);
      }
    }
    if (const FieldEntry* table = index_.find_field(section); table && is_option_table(*table)) {
      if (std::string_view text; take_value(name, text))
        overrides_.push_back({table, std::string(leaf), parse_scalar(without_quotes(text))});
      return;
    }
    skip_value();
    if (index_.find_section(name)) {
      problems_.push_back(fmt::format("command line: --{} is a section; expected --{}.FIELD value", name, name));
    } else {
      problems_.push_back(fmt::format("command line: unknown option --{}{}", shown_name(name), advice_for_unknown(name, index_)));
    }
  }

  void read_field(const FieldEntry& field, const std::string& name) {
    if (is_bool(field)) {
      if (has_inline_) return add_text(field, inline_);
      if (next_ < args_.size() && !is_option(args_[next_])) return add_text(field, args_[next_++]);
      return add(field, true);
    }
    if (is_list_of_lists(field) && !has_inline_) return read_list_of_lists(field, name);
    if (std::string_view text; take_value(name, text)) add_text(field, text);
  }

  void read_list_of_lists(const FieldEntry& field, const std::string& name) {
    Json all = Json::array();
    const size_t first = next_;
    for (; next_ < args_.size() && !is_option(args_[next_]); ++next_) {
      Json value;
      if (std::string problem = parse_text(field, without_quotes(args_[next_]), value); !problem.empty()) return refuse(name, problem);
      if (value.is_null()) {
        all = value;
      } else if (all.is_array()) {
        for (Json& item : value) all.push_back(std::move(item));
      }
    }
    if (next_ == first) return refuse(name, "expected a value after it");
    add(field, std::move(all));
  }

  bool take_value(const std::string& name, std::string_view& text) {
    if (has_inline_) {
      text = inline_;
      return true;
    }
    if (next_ < args_.size() && !is_option(args_[next_])) {
      text = args_[next_++];
      return true;
    }
    refuse(name,
           next_ < args_.size() ? fmt::format("expected a value after it, found {}", shown(args_[next_])) : "expected a value after it");
    return false;
  }

  void skip_value() {
    if (!has_inline_ && next_ < args_.size() && !is_option(args_[next_])) ++next_;
  }

  void add_text(const FieldEntry& field, std::string_view text) {
    Json value;
    if (std::string problem = parse_text(field, without_quotes(text), value); !problem.empty()) return refuse(field.name, problem);
    add(field, std::move(value));
  }

  void add(const FieldEntry& field, Json value) { overrides_.push_back({&field, "", std::move(value)}); }
  void refuse(const std::string& name, std::string_view why) {
    problems_.push_back(fmt::format("command line: --{}: {}", shown_name(name), why));
  }
  static std::string shown_name(const std::string& name) {
    const std::string text = shown(name);  // escapes what a terminal should not see
    return text.substr(1, text.size() - 2);
  }

  std::span<const std::string> args_;
  const ConfigIndex& index_;
  std::vector<std::string>& problems_;
  std::set<std::string>& refused_;
  std::vector<Override> overrides_;
  size_t next_ = 0;
  bool has_inline_ = false;
  std::string_view inline_;
};

}  // namespace

std::vector<Override> read_command_line(std::span<const std::string> args, const ConfigIndex& index, std::vector<std::string>& problems,
                                        std::set<std::string>& refused) {
  return Reader(args, index, problems, refused).read();
}

}  // namespace halftone
