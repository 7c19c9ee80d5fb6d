#include "halftone/cli/eval_serve.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using Request = nlohmann::json;

constexpr const char* kForms = "expected type loglikelihood, loglikelihood_rolling or generate_until";

std::string shortened(const Request& value) {
  const std::string text = value.dump(-1, ' ', false, Request::error_handler_t::replace);
  return text.size() <= 40 ? text : text.substr(0, 37) + "...";
}

std::string text_of(const Request& value, const char* what) {
  check(value.is_string(), "a request: expected {} as text, found {}", what, shortened(value));
  return value.get<std::string>();
}

void check_pair(const Request& r, const char* what) {
  check(r.is_array() && r.size() == 2, "a request: expected [{}], found {}", what, shortened(r));
}

eval::Prompt prompt_of(const Request& r) {
  check_pair(r, "context, settings");
  eval::Prompt p{text_of(r[0], "the context"), {}};
  const Request& settings = r[1];
  check(settings.is_object(), "a request: expected settings such as {{\"until\": [\"\\n\"]}}, found {}", shortened(settings));
  if (settings.contains("max_gen_toks")) {
    const Request& most = settings["max_gen_toks"];
    check(most.is_number_integer() && most > 0 && most < (1 << 30), "a request: expected max_gen_toks above 0, found {}", shortened(most));
    p.max_new_tokens = most.get<int64_t>();
  }
  check(settings.value("do_sample", Request(false)) == false, "a request: only greedy generation is served; set do_sample to false");
  const Request until = settings.value("until", Request::array());
  for (const Request& s : until.is_string() ? Request::array({until}) : until) p.until.push_back(text_of(s, "a string of until"));
  return p;
}

Request results_of(EvalModel& model, const Request& asked) {
  check(asked.is_object() && asked.contains("type") && asked.contains("requests") && asked["requests"].is_array(),
        "a request: expected {{\"id\", \"type\", \"requests\": [...]}}, found {}", shortened(asked));
  const std::string type = text_of(asked["type"], "the type");
  const Request& list = asked["requests"];
  Request results = Request::array();
  if (type == "loglikelihood") {
    std::vector<eval::Continuation> all;
    for (const Request& r : list) {
      check_pair(r, "context, continuation");
      all.push_back({text_of(r[0], "the context"), text_of(r[1], "the continuation")});
    }
    for (const eval::LogLikelihood& a : model.scorer().continuations(all, true)) results.push_back({a.value, a.greedy});
  } else if (type == "loglikelihood_rolling") {
    std::vector<std::string> all;
    for (const Request& r : list) all.push_back(text_of(r, "a text"));
    for (const double value : model.scorer().texts(all)) results.push_back(value);
  } else if (type == "generate_until") {
    std::vector<eval::Prompt> all;
    for (const Request& r : list) all.push_back(prompt_of(r));
    for (std::string& text : model.scorer().generations(all)) results.push_back(std::move(text));
  } else {
    fail("{}, found '{}'", kForms, type);
  }
  return results;
}

}  // namespace

void serve(EvalModel& model, std::istream& in, std::ostream& out) {
  constexpr auto kReplace = Request::error_handler_t::replace;
  out << Request{{"ready", true}, {"max_length", model.scorer().max_length()}}.dump() << std::endl;
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Request answer = {{"id", nullptr}};
    try {
      const Request asked = Request::parse(line, nullptr, false);
      if (asked.is_object() && asked.contains("id")) answer["id"] = asked["id"];
      answer["results"] = results_of(model, asked);
    } catch (const Error& error) {
      answer["error"] = error.what();
    }
    out << answer.dump(-1, ' ', false, kReplace) << std::endl;
  }
}

}  // namespace halftone
