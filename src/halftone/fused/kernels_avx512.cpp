#include "halftone/fused/rows/table.h"
