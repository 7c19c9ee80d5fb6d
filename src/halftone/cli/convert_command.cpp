#include "halftone/train/convert.h"

#include "halftone/base/error.h"
#include "halftone/cli/parse.h"

namespace halftone {

int convert_command(Arguments args) {
  CLI::App app{
      "Converts between Hugging Face folders and checkpoints of halftone: a Hugging Face folder becomes a step that generate "
      "--checkpoint and checkpoint.initial_load_path read, a run's folder or step a Hugging Face folder",
      "halftone convert"};
  ConvertOptions o;
  std::string dtype, codes;
  bool compare = false;
  app.add_option("--from", o.from, "Hugging Face folder, run folder or step folder")->required();
  app.add_option("--to", o.to, "folder to write; it must not be there, or be empty")->required();
  app.add_option("--dtype", dtype, "float32, bfloat16 or float16; default: each weight keeps its own, codes with scales become bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app.add_option(
         "--codes", codes,
         "of a Hugging Face folder that is written: mxfp4 stores stacked experts as codes, fp8_blockwise the linear layers of models whose "
         "experts are apart; all else stays numbers")
      ->check(CLI::IsMember({"mxfp4", "fp8_blockwise"}));
  app.add_option("--max-shard-bytes", o.max_shard_bytes,
                 "size of a file at most; default: the shards of the Hugging Face folder that the weights are from, else 5 GiB");
  app.add_flag("--check", compare,
               "then compute logits with both in float32 on the CPU and compare; status 2 where they should agree and differ");
  if (!parse(app, args)) return 0;
  if (!dtype.empty()) o.dtype = dtype == "float32" ? at::kFloat : dtype == "bfloat16" ? at::kBFloat16 : at::kHalf;
  o.codes = hf_codes_of(codes);
  const ConvertResult r = convert(o);
  fmt::print("{} ({}): {} tensors, {:.2f} GB in {:.1f} s, {:.2f} GB/s\n", o.to.string(), r.to_hf ? "Hugging Face" : "halftone", r.tensors,
             static_cast<double>(r.bytes) / 1e9, r.seconds, static_cast<double>(r.bytes) / 1e9 / r.seconds);
  if (!compare) return 0;
  std::fflush(stdout);
  const LogitsDifference d = compare_logits(o.from, o.to);
  fmt::print("largest difference of logits {:.6g} (of magnitude {:.4g}), KL {:.3g}\n", d.largest, d.magnitude, d.divergence);
  check(d.finite, "--check: there are logits that are not finite");
  check(!r.same_numbers || d.largest == 0, "--check: no weight was rounded, and yet the logits of {} and {} differ", o.from.string(),
        o.to.string());
  return 0;
}

}  // namespace halftone
