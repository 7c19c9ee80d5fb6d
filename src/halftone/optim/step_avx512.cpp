#include "halftone/optim/rows.h"
