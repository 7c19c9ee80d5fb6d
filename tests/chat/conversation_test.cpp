#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/chat/conversation.h"

namespace halftone::conversation_test {
namespace {

using Fields = nlohmann::ordered_json;

Conversation read(const char* row, ChatOptions options = {}) { return read_conversation(Fields::parse(row), options); }
std::string error_of(const char* row, ChatOptions options = {}) {
  try {
    read(row, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Conversation, OpenAi) {
  const auto c = read(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "2"}], "tools": "[{\"type\": \"function\"}]"})");
  EXPECT_EQ(c.messages[1]["tool_calls"][0]["function"]["arguments"], (Fields{{"x", 1}}));
  EXPECT_EQ(c.messages[2]["tool_call_id"], "1");
  EXPECT_EQ(c.tools, (Fields{{{"type", "function"}}}));
}

TEST(Conversation, ShareGpt) {
  const auto c = read(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
      {"from": "observation", "value": "b"}, {"from": "gpt", "value": "c"}], "system": "s", "tools": ""})");
  ASSERT_EQ(c.messages.size(), 5u);
  EXPECT_EQ(c.messages[0], (Fields{{"role", "system"}, {"content", "s"}}));
  EXPECT_EQ(c.messages[2]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(c.messages[3]["role"], "tool");
  EXPECT_EQ(c.messages[4], (Fields{{"role", "assistant"}, {"content", "c"}}));
  EXPECT_TRUE(c.tools.is_null());
}

TEST(Conversation, Alpaca) {
  const auto c = read(R"({"instruction": "i", "input": "n", "output": "o", "system": "s", "history": [["q", "a"]]})");
  ASSERT_EQ(c.messages.size(), 5u);
  EXPECT_EQ(c.messages[3], (Fields{{"role", "user"}, {"content", "i\nn"}}));
  EXPECT_EQ(c.messages[4], (Fields{{"role", "assistant"}, {"content", "o"}}));
}

TEST(Conversation, IsFoundByItsFields) {
  const auto is = [](const char* row, ChatFormat format = ChatFormat::automatic) {
    ChatOptions options;
    options.format = format;
    return is_conversation(Fields::parse(row), options);
  };
  EXPECT_TRUE(is(R"({"messages": [{"role": "user"}]})"));
  EXPECT_TRUE(is(R"({"conversations": [{"from": "human"}]})"));
  EXPECT_TRUE(is(R"({"conversations": [{"role": "user"}]})"));
  EXPECT_TRUE(is(R"({"instruction": "", "output": ""})"));
  EXPECT_FALSE(is(R"({"text": "a"})"));
  EXPECT_FALSE(is(R"({"messages": "a", "text": "a"})"));
  EXPECT_FALSE(is(R"({"messages": [{"role": "user"}]})", ChatFormat::none));
  EXPECT_FALSE(is(R"({"messages": [{"role": "user"}]})", ChatFormat::alpaca));
}

TEST(Conversation, TurnsAreLimited) {
  ChatOptions options;
  options.max_turns = 2;
  const char* row =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]})";
  EXPECT_EQ(read(row, options).messages.size(), 2u);
  options.max_turns = 1;
  EXPECT_NE(error_of(row, options).find("none of the 1 messages is of the assistant"), std::string::npos);
  options.loss_on = LossOn::all;
  EXPECT_EQ(read(row, options).messages.size(), 1u);
}

TEST(Conversation, ErrorsSayWhatIsWrong) {
  EXPECT_EQ(error_of(R"({"messages": [{"role": 5, "content": "a"}]})"), "messages[0].role: expected a string, found 5");
  EXPECT_EQ(error_of(R"({"messages": [{"role": "user", "content": 5}]})"),
            "messages[0].content: expected a string or a list of parts, found 5");
  EXPECT_EQ(error_of(R"({"messages": [{"role": "user"}]})"), "messages[0].content: expected a string or a list of parts, found nothing");
  EXPECT_EQ(error_of(R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}]})"),
            "messages[0].tool_calls[0].function.name: expected a string, found nothing");
  EXPECT_EQ(error_of(R"({"conversations": [{"from": "bot", "value": "a"}]})"),
            "conversations[0].from: expected human, gpt, system, tool, observation or function_call, found \"bot\"");
  EXPECT_EQ(error_of(R"({"instruction": "a", "output": 1})"), "output: expected a string, found 1");
  EXPECT_EQ(error_of(R"({"instruction": "a", "output": "b", "history": [["q"]]})"),
            "history[0]: expected a pair of strings, found [\"q\"]");
  EXPECT_EQ(error_of(R"({"messages": [{"role": "assistant", "content": "a"}], "tools": "{"})"),
            "tools: expected a list, or a list in JSON, found \"{\"");
}

// --- What is learned ---

struct Family {
  const char* name;
  const char* text;
};
// Constructs of each family, in short: what a generation prompt adds, how a turn ends, and what later messages change in earlier turns.
constexpr Family kFamilies[] = {
    {"chatml",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt "
     "%}<|im_start|>assistant\n{% endif %}"},
    {"headers",
     "{{ bos_token }}{% for m in messages %}<|h|>{{ m.role }}<|/h|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}{% if "
     "add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"},
    // Strict roles, no generation prompt, tools in the last message.
    {"instructions",
     "{% set user = messages | selectattr('role', 'equalto', 'user') | list | last %}{{ bos_token }}{% for m in messages %}"
     "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
     "{% if m.role == 'user' %}{% if loop.last or loop.revindex == 2 %}[TOOLS]{{ tools }}[/TOOLS]{% endif %}[INST] {{ m.content }} [/INST]"
     "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"},
    // The reasoning of earlier turns is dropped, the last turn has a reasoning in any case.
    {"reasoning",
     "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor "
     "%}"
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>\n{{ "
     "m.reasoning_content }}\n</think>\n\n{% endif %}"
     "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    // The prompt opens a reasoning that the text of a turn has not.
    {"opened",
     "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% else %}<|Assistant|>{{ "
     "m.content.split('</think>')[-1] }}<|end|>{% endif %}"
     "{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"},
    // The last turn ends with another token than the earlier ones.
    {"channels",
     "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% else %}"
     "{% if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
     "<|start|>assistant<|channel|>final<|message|>{{ m.content }}{% if loop.last and not add_generation_prompt %}<|return|>{% else "
     "%}<|end|>{% endif %}{% endif %}"
     "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"},
};

std::vector<std::string> learned(const RenderedChat& chat) {
  std::vector<std::string> parts;
  for (const ByteRange& r : chat.learned) parts.push_back(chat.text.substr(r.begin, r.end - r.begin));
  return parts;
}
RenderedChat train(const char* name, const Fields& messages, LossOn loss_on = LossOn::assistant) {
  for (const Family& family : kFamilies) {
    if (std::string(name) == family.name) {
      return ChatTemplate(family.text, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, name).render_for_training(messages, nullptr, loss_on);
    }
  }
  fail("no family {}", name);
}

const Fields kTwoTurns{{{"role", "user"}, {"content", "one"}},
                       {{"role", "assistant"}, {"content", "<table>"}, {"reasoning_content", "because"}},
                       {{"role", "user"}, {"content", "<table>"}},
                       {{"role", "assistant"}, {"content", "four"}, {"reasoning_content", "hm"}}};
using Parts = std::vector<std::string>;

TEST(Learned, EachFamily) {
  EXPECT_EQ(learned(train("chatml", kTwoTurns)), (Parts{"<table><|im_end|>", "four<|im_end|>"}));
  EXPECT_EQ(learned(train("headers", kTwoTurns)), (Parts{"<table><|eot|>", "four<|eot|>"}));
  EXPECT_EQ(learned(train("instructions", kTwoTurns)), (Parts{" <table></s>", " four</s>"}));
  EXPECT_EQ(learned(train("reasoning", kTwoTurns)), (Parts{"<table><|im_end|>", "<think>\nhm\n</think>\n\nfour<|im_end|>"}));
  EXPECT_EQ(learned(train("opened", kTwoTurns)), (Parts{"<table><|end|>", "four<|end|>"}));
  EXPECT_EQ(learned(train("channels", kTwoTurns)),
            (Parts{"<|channel|>final<|message|><table><|end|>",
                   "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>four<|return|>"}));
}

TEST(Learned, OnlyTheLastTurn) {
  for (const Family& family : kFamilies) {
    const auto all = train(family.name, kTwoTurns), last = train(family.name, kTwoTurns, LossOn::last);
    EXPECT_EQ(last.text, all.text) << family.name;
    ASSERT_EQ(last.learned.size(), 1u) << family.name;
    EXPECT_EQ(last.learned[0], all.learned[1]) << family.name;
  }
}

TEST(Learned, Everything) {
  const auto chat = train("chatml", kTwoTurns, LossOn::all);
  EXPECT_EQ(chat.learned, (std::vector<ByteRange>{{0, chat.text.size()}}));
}

TEST(Learned, EmptyAndRepeatedWords) {
  const Fields messages{{{"role", "user"}, {"content", ""}},
                        {{"role", "assistant"}, {"content", ""}},
                        {{"role", "user"}, {"content", "a"}},
                        {{"role", "assistant"}, {"content", "a"}}};
  EXPECT_EQ(learned(train("chatml", messages)), (Parts{"<|im_end|>", "a<|im_end|>"}));
  EXPECT_EQ(learned(train("channels", messages)), (Parts{"<|channel|>final<|message|><|end|>", "<|channel|>final<|message|>a<|return|>"}));
  EXPECT_EQ(learned(train("opened", messages)), (Parts{"<|end|>", "a<|end|>"}));
}

TEST(Learned, GenerationBlocks) {
  const ChatTemplate chat(
      "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ "
      "m.content }}{% endif %}{% endfor %}",
      nullptr, "t");
  EXPECT_EQ(learned(chat.render_for_training(kTwoTurns, nullptr, LossOn::assistant)), (Parts{"<table>;", "four;"}));
  EXPECT_EQ(learned(chat.render_for_training(kTwoTurns, nullptr, LossOn::last)), (Parts{"four;"}));
}

TEST(Learned, ATurnWithoutAPlaceIsAnError) {
  const ChatTemplate chat("{{ messages | length }}", nullptr, "t");
  try {
    chat.render_for_training(kTwoTurns, nullptr, LossOn::assistant);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("t: messages[1]: cannot find where this turn of the assistant begins"), std::string::npos)
        << error.what();
  }
}

TEST(ChatTemplate, DigestFollowsTheTextAndTheTokens) {
  const ChatTemplate a("x", {{"bos_token", "1"}}, "a"), b("x", {{"bos_token", "2"}}, "a"), c("y", {{"bos_token", "1"}}, "a"),
      d("x", {{"bos_token", "1"}}, "d");
  EXPECT_NE(a.digest(), b.digest());
  EXPECT_NE(a.digest(), c.digest());
  EXPECT_EQ(a.digest(), d.digest());
}

TEST(ChatTemplate, NullFieldsAreDroppedAndReasoningHasItsNames) {
  const ChatTemplate chat(
      "{{ messages[0].tool_calls is defined }} {{ messages[0].thinking }} {{ messages[0].reasoning_content }} {{ tools }}", nullptr, "t");
  EXPECT_EQ(chat.render(Fields{{{"role", "assistant"}, {"tool_calls", nullptr}, {"reasoning", "r"}}}, nullptr, false), "False r r None");
}

}  // namespace
}  // namespace halftone::conversation_test
