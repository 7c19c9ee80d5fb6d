#include "halftone/checkpoint/index.h"

#include <gtest/gtest.h>

#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"

namespace halftone {
namespace {

using testing::expect_error;

CheckpointIndex example() {
  CheckpointIndex index{.step = 7, .model_only = false, .world = 2, .mesh = {{"dp_shard", 2}}, .files = {}, .tensors = {}};
  index.files["model-0.safetensors"] = {.bytes = 100, .checksum = 0x0123456789abcdefull};
  index.files["model-1.safetensors"] = {.bytes = 50, .checksum = std::nullopt};
  index.tensors["w"] = {.dtype = FileDType::bf16,
                        .shape = {5, 4},
                        .chunks = {{"model-0.safetensors", {0, 0}, {3, 4}}, {"model-1.safetensors", {3, 0}, {2, 4}}}};
  index.tensors["scalar"] = {.dtype = FileDType::i64, .shape = {}, .chunks = {{"model-0.safetensors", {}, {}}}};
  index.tensors["empty"] = {.dtype = FileDType::f32, .shape = {0, 4}, .chunks = {{"model-0.safetensors", {0, 0}, {0, 4}}}};
  return index;
}

// Changes one value of the example's JSON and expects the parser to reject it.
void expect_refused(const std::string& pointer, const Json& value, const std::string& part) {
  SCOPED_TRACE(pointer);
  Json root = Json::parse(write_index(example()));
  root[Json::json_pointer(pointer)] = value;
  expect_error([&] { parse_index(root.dump(), "index.json"); }, part);
}

TEST(CheckpointIndex, RoundTrip) {
  const CheckpointIndex index = example();
  EXPECT_EQ(parse_index(write_index(index), "index.json"), index);
}

TEST(CheckpointIndex, ChunkNames) {
  const CheckpointIndex index = example();
  const IndexedTensor& w = index.tensors.at("w");
  EXPECT_EQ(chunk_name("w", w, w.chunks[1]), "w@3,0");
  const IndexedTensor& scalar = index.tensors.at("scalar");
  EXPECT_EQ(chunk_name("scalar", scalar, scalar.chunks[0]), "scalar");
}

TEST(CheckpointIndex, RefusesWrongValues) {
  expect_refused("/format", "zip", "expected the format halftone-checkpoint, found zip");
  expect_refused("/version", 2, "format version 2, this program reads version 1");
  expect_refused("/step", -1, "non-negative integer");
  expect_refused("/step", "7", "non-negative integer");
  expect_refused("/model_only", 1, "expects true or false");
  expect_refused("/mesh", Json::array(), "\"mesh\" expects an object");
  expect_refused("/files/..", Json{{"bytes", 1}}, "not the name of a file");
  expect_refused("/files/a~1b", Json{{"bytes", 1}}, "not the name of a file");
  expect_refused("/files/index.json", Json{{"bytes", 1}}, "not the name of a file");
  expect_refused("/files/model-0.safetensors/xxh3_64", "xyz", "16 hexadecimal digits");
  expect_refused("/files/model-0.safetensors/bytes", 1.5, "non-negative integer");
  expect_refused("/tensors/w/dtype", "F7", "unknown dtype");
  expect_refused("/tensors/w/chunks", Json::array(), "hold 0 of 20 elements");
  expect_refused("/tensors/empty/chunks", Json::array(), "no chunk");
  expect_refused("/tensors/w/chunks/0/file", "other", "not listed under \"files\"");
  expect_refused("/tensors/w/chunks/1/offset", {4, 0}, "lies outside the shape [5, 4]");
  expect_refused("/tensors/w/chunks/1/offset", {2, 0}, "overlap");
  expect_refused("/tensors/w/chunks/1/offset", {3}, "dimensions");
  expect_refused("/tensors/w/chunks/1/shape", {1, 4}, "hold 16 of 20 elements");
  expect_refused("/tensors/w/shape", {4294967296, 4294967296}, "too many elements");
}

TEST(CheckpointIndex, RefusesOverlapThatCountsRight) {
  CheckpointIndex index = example();
  // Two chunks of 10 elements in a tensor of 20 that share the middle row.
  index.tensors["w"].shape = {4, 5};
  index.tensors["w"].chunks = {{"model-0.safetensors", {0, 0}, {2, 5}}, {"model-1.safetensors", {1, 0}, {2, 5}}};
  expect_error([&] { parse_index(write_index(index), "index.json"); }, "overlap");
}

TEST(CheckpointIndex, FiniteIsTrueWhereNothingIsSaid) {
  CheckpointIndex index = example();
  EXPECT_EQ(first_not_finite(index), nullptr);
  Json root = Json::parse(write_index(index));
  EXPECT_EQ(root["finite"], true);
  root.erase("finite");  // as this program wrote it before
  EXPECT_EQ(parse_index(root.dump(), "index.json"), index);
  index.tensors["w"].finite = false;
  EXPECT_EQ(*first_not_finite(index), "w");
  EXPECT_EQ(parse_index(write_index(index), "index.json"), index);
  EXPECT_EQ(Json::parse(write_index(index))["finite"], false);
  expect_refused("/finite", false, "\"finite\" is not true, as its tensors are");
  expect_refused("/finite", 1, "expects true or false");
  expect_refused("/tensors/w/finite", "no", "expects true or false");
}

TEST(CheckpointIndex, PartsMakeTheWhole) {
  const CheckpointIndex whole = example();
  CheckpointIndex parts[2] = {whole, whole};
  for (size_t i = 0; i < 2; ++i) {
    std::erase_if(parts[i].files, [&](const auto& file) { return file.first != fmt::format("model-{}.safetensors", i); });
    parts[i].tensors["w"].chunks = {whole.tensors.at("w").chunks[i]};
  }
  for (const char* name : {"scalar", "empty"}) parts[1].tensors.erase(name);
  const std::string text = write_index(parts[1]);
  expect_error([&] { parse_index(text, "part"); }, "part: tensor w: its chunks hold 8 of 20 elements");
  EXPECT_EQ(parse_index(text, "part", true), parts[1]);
  CheckpointIndex merged = parts[0];
  merge_part(merged, parse_index(text, "part", true), "part");
  EXPECT_EQ(merged, whole);
  expect_error([&] { merge_part(merged, parts[1], "part"); }, "part: another rank wrote model-1.safetensors as well");
  const auto refused = [&](const std::function<void(CheckpointIndex&)>& change, const std::string& why) {
    CheckpointIndex index = parts[0], part = parts[1];
    change(part);
    expect_error([&] { merge_part(index, part, "part"); }, why);
  };
  refused([](CheckpointIndex& part) { part.step = 8; }, "a part of step 8 of 2 ranks, expected step 7 of 2");
  refused([](CheckpointIndex& part) { part.world = 3; }, "a part of step 7 of 3 ranks");
  refused([](CheckpointIndex& part) { part.tensors["w"].shape = {6, 4}; }, "tensor w is BF16 [6, 4], another rank has BF16 [5, 4]");
  refused([](CheckpointIndex& part) { part.tensors["w"].dtype = FileDType::f32; }, "tensor w is F32 [5, 4]");
}

TEST(CheckpointIndex, RefusesEveryTruncation) {
  const std::string text = write_index(example());
  for (size_t n = 0; n + 2 < text.size(); ++n) EXPECT_THROW(parse_index(text.substr(0, n), "index.json"), Error) << n;
}

TEST(StateJson, MustBeAnObject) {
  check_state_json("{\"a\": [1, 2, {\"b\": null}]}", "state.json");
  expect_error([] { check_state_json("[]", "state.json"); }, "state.json: expected a JSON object");
  expect_error([] { check_state_json("{\"a\": 1", "state.json"); }, "not valid JSON");
}

}  // namespace
}  // namespace halftone
