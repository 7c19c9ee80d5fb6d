#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/chat/conversation.h"
#include "halftone/chat/jinja/interpreter.h"

namespace halftone::jinja_test {
namespace {

using Fields = nlohmann::ordered_json;

std::string render(const std::string& text, const Fields& variables = Fields::object()) {
  return ChatTemplate(text, variables, "t").render(Fields{{{"role", "user"}, {"content", "x"}}}, nullptr, false);
}
std::string value(const std::string& expression, const Fields& variables = Fields::object()) {
  return render("{{ " + expression + " }}", variables);
}
std::string error_of(const std::string& text, const Fields& variables = Fields::object()) {
  try {
    return "no error: " + render(text, variables);
  } catch (const Error& error) {
    return error.what();
  }
}

// Expected values are those of Python 3.11 with Jinja 3.1.
TEST(Jinja, PrintsValuesAsPythonDoes) {
  EXPECT_EQ(value("[1.0, 1e16, 1.5e-7, 0.1, 100.0, true, none, 'a', \"it's\", 'q\"', \"b'\\\"\"]"),
            "[1.0, 1e+16, 1.5e-07, 0.1, 100.0, True, None, 'a', \"it's\", 'q\"', 'b\\'\"']");
  EXPECT_EQ(value("(1,)"), "(1,)");
  EXPECT_EQ(value("{'a': (), 'b': {}}"), "{'a': (), 'b': {}}");
  EXPECT_EQ(value("['\\n\\t\\\\', '\\x7f', '\\u200b\\u00e9']"), "['\\n\\t\\\\', '\\x7f', '\\u200b\xC3\xA9']");
  EXPECT_EQ(value("missing"), "");
  EXPECT_EQ(value("[missing]"), "[Undefined]");
}

TEST(Jinja, ComputesAsPythonDoes) {
  EXPECT_EQ(value("[7 // 2, -7 // 2, 7 % -3, -7 % 3, 7 / 2, 2 ** 10, 2 ** -1, 7.5 // 2, -7.5 % 2, 1 + true]"),
            "[3, -4, -2, 2, 3.5, 1024, 0.5, 3.0, 0.5, 2]");
  EXPECT_EQ(value("2 ** 3 ** 2"), "64");  // Jinja's ** associates to the left
  EXPECT_EQ(value("1 ~ 'a' ~ none"), "1aNone");
  EXPECT_EQ(value("'ab' * 2 + 'c'"), "ababc");
  EXPECT_EQ(value("[1 < 2 < 3, 1 < 3 < 2, 'a' in 'cat', 1 in [1.0], 'k' not in {'k': 1}, 1 == true, not 1 == 2]"),
            "[True, False, True, True, False, True, True]");
  EXPECT_EQ(value("'%s-%d%%' % ('x', 3)"), "x-3%");
  EXPECT_EQ(value("-2 | abs"), "2");
  EXPECT_EQ(value("'a' if false"), "");
  EXPECT_EQ(value("9007199254740993 == 9007199254740992.0"), "False");
}

TEST(Jinja, Slices) {
  EXPECT_EQ(value("[1, 2, 3, 4][::-1], [1, 2, 3][1:], [1, 2, 3][:-1], [1, 2, 3, 4][3:0:-2], [1][5:], [1, 2, 3][-9:2]"),
            "([4, 3, 2, 1], [2, 3], [1, 2], [4, 2], [], [1, 2])");
  EXPECT_EQ(value("'na\xC3\xAFve'[2:4] ~ '|' ~ 'na\xC3\xAFve'[-1] ~ '|' ~ '\xE6\x97\xA5\xE6\x9C\xAC'[::-1]"),
            "\xC3\xAFv|e|\xE6\x9C\xAC\xE6\x97\xA5");
}

TEST(Jinja, StringMethods) {
  EXPECT_EQ(value("' a b  c '.split(), 'a,b,c'.split(',', 1), 'a,b,c'.rsplit(',', 1), ''.split(','), 'a\\nb\\r\\nc'.splitlines()"),
            "(['a', 'b', 'c'], ['a', 'b,c'], ['a,b', 'c'], [''], ['a', 'b', 'c'])");
  EXPECT_EQ(value("'xxaxx'.strip('x'), ' \xC2\xA0 a '.strip(), 'aXb'.title(), 'hello wORLD'.capitalize(), 'a-b c'|title"),
            "('a', 'a', 'Axb', 'Hello world', 'A-B C')");
  EXPECT_EQ(
      value("'abcb'.find('b'), 'abcb'.rfind('b'), 'abc'.find('z'), 'aaa'.replace('a', 'b', 2), 'ab'.replace('', '-'), '\xC3\xA9'.upper()"),
      "(1, 3, -1, 'bba', '-a-b-', '\xC3\x89')");
  EXPECT_EQ(
      value(
          "'a.b'.partition('.'), 'ab'.startswith(('x', 'a')), 'ab'.removeprefix('a'), '{} {1} {{}} {n}'.replace('1', '0').format(1, n=2)"),
      "(('a', '.', 'b'), True, 'b', '1 1 {} 2')");
}

TEST(Jinja, Filters) {
  const Fields people{{"people", Fields{{{"n", "b"}, {"a", 2}}, {{"n", "A"}, {"a", 1}}}}};
  EXPECT_EQ(value("people | map(attribute='n') | join(',')", people), "b,A");
  EXPECT_EQ(value("people | sort(attribute='n') | map(attribute='a') | list", people), "[1, 2]");
  EXPECT_EQ(value("people | selectattr('a', 'equalto', 2) | map(attribute='n') | first", people), "b");
  EXPECT_EQ(value("people | rejectattr('a', '>', 1) | list | length", people), "1");
  EXPECT_EQ(value("{'b': 1, 'A': [1.5, none]} | tojson"), "{\"b\": 1, \"A\": [1.5, null]}");
  EXPECT_EQ(value("{'b': [], 'a': {'c': '<\xC3\xA9\\n'}} | tojson(indent=2, sort_keys=true)"),
            "{\n  \"a\": {\n    \"c\": \"<\xC3\xA9\\n\"\n  },\n  \"b\": []\n}");
  EXPECT_EQ(value("'\xF0\x9F\x8E\x89' | tojson(ensure_ascii=true)"), "\"\\ud83c\\udf89\"");
  EXPECT_EQ(value("[x | default('d'), '' | default('d', true), '3.7' | int, 'z' | int(9), '0x' | float, 2.5 | round, 3 | round]"),
            "['d', 'd', 3, 9, 0.0, 2.0, 3]");
  EXPECT_EQ(value("'a\\n\\nb' | indent(2, true)"), "  a\n\n  b");
  EXPECT_EQ(
      value(
          "[3, 1, 2] | sort(reverse=true) | list, [1, 1.0, 2] | unique | list, [1, 2] | sum, [1, 2] | max, 'ab' | reverse, [1, 2] | last"),
      "([3, 2, 1], [1, 2], 3, 2, 'ba', 2)");
  EXPECT_EQ(value("{'b': 1, 'a': 2} | dictsort, {'k': 1} | items | list, '<' | escape"), "([('a', 2), ('b', 1)], [('k', 1)], '&lt;')");
}

TEST(Jinja, AGeneratorIsTrueAndTakenOnce) {
  EXPECT_EQ(render("{% set g = [1, 2] | select('odd') %}{{ g is sequence }}{{ g | list }}{{ g | list }}{{ 1 if g else 0 }}"),
            "False[1][]1");
}

TEST(Jinja, WhiteSpaceControl) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a \n {%- if true -%} \n b {%- endif +%}\nc"), "ab\nc");
  EXPECT_EQ(render("  {%+ if true %}x{% endif %}"), "  x");
  EXPECT_EQ(render("{# c #}\nx{#- y -#} z"), "xz");
  EXPECT_EQ(render("{% raw %}\n{{ x }}{% endraw %}!"), "\n{{ x }}!");
  EXPECT_EQ(render("{{ 'a' }}\n{{- 'b' -}}\n c"),
            "a"
            "b"
            "c");
}

TEST(Jinja, StatementsAndScopes) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "231");
  EXPECT_EQ(render("{% set ns = namespace(n=0) %}{% for i in range(4) if i != 2 %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"), "4");
  EXPECT_EQ(render("{% for i in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(
      render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
      "02");
  EXPECT_EQ(render("{% for k, v in {'a': 1}.items() %}{{ loop.index }}{{ loop.last }}{{ k }}{{ v }}{% endfor %}"), "1Truea1");
  EXPECT_EQ(render("{% for i in 'ab' %}{{ loop.previtem }}{{ i }}{{ loop.nextitem }} {% endfor %}"), "ab ab ");
  EXPECT_EQ(render("{% macro f(a, b=a ~ '!') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}"), "11!12");
  EXPECT_EQ(render("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
  EXPECT_EQ(render("{% macro f() %}<{{ caller(1) }}>{% endmacro %}{% call(x) f() %}{{ x }}{% endcall %}"), "<1>");
  EXPECT_EQ(render("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}{% with y = 2 %}{{ y }}{% endwith %}{{ y }}"),
            "a1B2");
  EXPECT_EQ(render("{% set a, b = 1, 2 %}{{ b }}{{ a }}{% generation %}g{% endgeneration %}"), "21g");
  EXPECT_EQ(render("{{ {'items': 1}['items'] }}{{ {'a': 1}.items() | list }}{{ {'items': 1}.get('x', 3) }}"), "1[('a', 1)]3");
}

TEST(Jinja, ErrorsNameThePlace) {
  EXPECT_EQ(error_of("a\n  {{ x.y }}"), "t, line 2, column 7: 'x' is undefined");
  EXPECT_EQ(error_of("{% if %}"), "t, line 1, column 7: expected an expression, found %}");
  EXPECT_EQ(error_of("{% for x in y %}"), "t, line 1, column 17: expected {% endfor %}, found the end of the template");
  EXPECT_EQ(error_of("{{ 1 | nothing }}"), "t, line 1, column 8: no filter named 'nothing'");
  EXPECT_EQ(error_of("{% include 'x' %}"), "t, line 1, column 4: the tag 'include' is not supported or not expected here");
  EXPECT_EQ(error_of("{{ raise_exception('no ' ~ 1) }}"), "t, line 1, column 19: the template raises: no 1");
  EXPECT_EQ(error_of("{{ [1].append(2) }}"), "t, line 1, column 14: 'list' object has no attribute 'append'");
  EXPECT_EQ(error_of("{{ 'a' + 1 }}"), "t, line 1, column 8: unsupported operand types for +: 'str' and 'int'");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"), "t, line 1, column 24: an integer beyond 64 bits");
  EXPECT_EQ(error_of("\xC3\xA9{{ 'x' }"), "t, line 1, column 9: unexpected '}'");
}

TEST(Jinja, LimitsEndATemplateThatLoops) {
  EXPECT_NE(
      error_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}").find("takes more than 10000000 steps"),
      std::string::npos);
  EXPECT_NE(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("nested deeper than 600 levels"), std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}")
                .find("of more than 268435456 bytes"),
            std::string::npos);
  EXPECT_NE(error_of("{{ 'x' * 999999999999 }}").find("of more than 268435456 bytes"), std::string::npos);
  EXPECT_NE(error_of("{{ range(100001) }}").find("range() of more than 100000 items"), std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}")
                .find("nested deeper than 200 levels"),
            std::string::npos);
  EXPECT_NE(error_of("{{ " + std::string(5000, '(') + std::string(5000, ')') + " }}").find("nested deeper than 200 levels"),
            std::string::npos);
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += "+1";
  EXPECT_NE(error_of(chain + " }}").find("nested deeper than 200 levels"), std::string::npos);
  EXPECT_NE(
      error_of("{% set ns = namespace(x=[1]) %}{% for i in range(150) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}").find("steps"),
      std::string::npos);
}

TEST(Jinja, ANamespaceThatHoldsItselfIsFreed) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns.me[0].me | length }}"), "1");
}

}  // namespace
}  // namespace halftone::jinja_test
