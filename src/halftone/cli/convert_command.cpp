#include "halftone/train/convert.h"

#include "halftone/base/error.h"
#include "halftone/cli/parse.h"
#include "halftone/train/export_formats.h"

namespace halftone {

int convert_command(Arguments args) {
  CLI::App app{
      "Converts a Hugging Face folder to a checkpoint for generate --checkpoint and checkpoint.initial_load_path, or a run or step folder "
      "to a Hugging Face folder; with --format, any of them to a folder or a file of weights as codes",
      "halftone convert"};
  ConvertOptions o;
  std::string dtype;
  bool compare = false;
  app.add_option("--from", o.from, "Hugging Face folder, run folder or step folder")->required();
  app.add_option("--to", o.to, "folder to write, which must not exist or be empty; with --format gguf a new file")->required();
  app.add_option("--dtype", dtype, "float32, bfloat16 or float16; default: the dtype of each weight, bfloat16 for quantized weights")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  std::string formats;
  for (const ExportFormat& format : export_formats()) formats += fmt::format("{}{}", formats.empty() ? "" : ", ", format.name);
  app.add_option("--format", o.format, fmt::format("weights as codes with scales: {}", formats));
  app.add_option("--codes", o.codes,
                 "with --format: the codes to write; default: those that the run multiplied with, or that the folder has already");
  app.add_option("--max-shard-bytes", o.max_shard_bytes,
                 "largest file in bytes; default: that of the Hugging Face folder which the weights come from, else 5 GiB");
  app.add_flag("--check", compare, "compare the logits of both in float32 on the CPU; status 2 when they should agree and differ");
  if (!parse(app, args)) return 0;
  if (!dtype.empty()) o.dtype = dtype == "float32" ? at::kFloat : dtype == "bfloat16" ? at::kBFloat16 : at::kHalf;
  check(!compare || o.format.empty() || !find_export_format(o.format).file, "--check reads folders; leave it out with --format {}",
        o.format);
  const ConvertResult r = convert(o);
  fmt::print("{} ({}): {} tensors, {:.2f} GB in {:.1f} s, {:.2f} GB/s\n", o.to.string(),
             !o.format.empty() ? o.format
             : r.to_hf         ? "Hugging Face"
                               : "halftone",
             r.tensors, static_cast<double>(r.bytes) / 1e9, r.seconds, static_cast<double>(r.bytes) / 1e9 / r.seconds);
  if (!compare) return 0;
  std::fflush(stdout);
  const LogitsDifference d = compare_logits(o.from, o.to);
  fmt::print("largest difference of logits {:.6g} (of magnitude {:.4g}), KL {:.3g}\n", d.largest, d.magnitude, d.divergence);
  check(d.finite, "--check: some logits are not finite");
  check(!r.same_numbers || d.largest == 0, "--check: the logits of {} and {} differ, although no weight was rounded", o.from.string(),
        o.to.string());
  return 0;
}

}  // namespace halftone
