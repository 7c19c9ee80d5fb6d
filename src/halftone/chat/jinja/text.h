#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Python's str, on UTF-8: positions and lengths count code points. Malformed UTF-8 does no harm; its code points are unspecified.
namespace halftone::jinja {

size_t code_point_bytes(std::string_view text, size_t position);  // >= 1; position < text.size()
size_t code_points(std::string_view text);
// Byte offset of the code point with this index; text.size() if there are fewer.
size_t code_point_offset(std::string_view text, size_t index);

// Bytes of the white space (str.isspace) at a position, or 0.
size_t space_bytes(std::string_view text, size_t position);
enum class Side { left, right, both };
// str.strip, lstrip and rstrip; chars: the code points to remove, white space if absent.
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars = {});
// str.split, or rsplit if from_right; no separator: at runs of white space. limit < 0: no limit.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t limit, bool from_right);
std::vector<std::string_view> split_lines(std::string_view text);  // str.splitlines()

enum class Case { lower, upper, capitalize, title, title_filter };
// One character for one; a Fault for letters that need more (as \u00DF in upper case), and for str.title() beyond ASCII.
std::string change_case(std::string_view text, Case to);

// repr(): quoted and escaped as Python does. Characters are printable unless they are controls, formats, separators or private.
void append_repr(std::string& out, std::string_view text);
std::string float_repr(double value);
// A JSON string as json.dumps writes it.
void append_json_string(std::string& out, std::string_view text, bool ascii);

}  // namespace halftone::jinja
