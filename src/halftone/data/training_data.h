#pragma once
#include <functional>
#include <string>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/data/dataset_table.h"
#include "halftone/data/row_sequence.h"
#include "halftone/data/source.h"
#include "halftone/data/text_codec.h"

namespace halftone {

// A data set of a run as its loader reads it: config.training's, or one of the sources of a mixture.
struct TrainingData {
  std::string name;  // for messages
  DataloaderConfig loader;
  SourceOptions reading;  // streamed where loader.read says so
  RowOptions rows;
  SourceShare share;  // in a mixture
};
// `codec`: makes the ids, by the loader's settings; make_text_codec for a run.
std::vector<TrainingData> training_data(const JobConfig& config, const std::function<TextCodec(const DataloaderConfig&)>& codec);

}  // namespace halftone
