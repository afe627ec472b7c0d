"""Forecasts of a data frame in the manner of Nixtla's libraries, scored and plotted by
utilsforecast.

python examples/forecaster.py
"""

# %% A frame of your own has the same columns: `pd.read_csv("meters.csv", parse_dates=["ds"])`
import importlib.util
from functools import partial

import numpy as np
import pandas as pd
from utilsforecast.evaluation import evaluate
from utilsforecast.losses import coverage, mae, mase, rmse

import plfl
from plfl.data.generated import generate

made_up = generate(4, days=60, minutes=60)
columns = {
    "unique_id": np.repeat(made_up.ids, made_up.num_times),
    "ds": np.tile(made_up.times(), 4),
}
df = pd.DataFrame(
    columns | {"y": made_up.load.ravel(), "temperature": made_up.covariates[..., 0].ravel()}
)
df["ds"] = df["ds"].dt.tz_localize("UTC")

# %% So few rounds and so small a model only show how it goes; leave the settings out to forecast
# well
small = {"rounds": 6, "local_steps": 20, "tune_rounds": 2, "hidden": 16, "days": 14, "batch": 32}
forecaster = plfl.Forecaster(h="24h", freq="h", level=[80, 90], timezone="America/Chicago", **small)

# %% The next 24 hours of every meter, with intervals
forecaster.fit(df)
forecasts = forecaster.predict()
print(forecasts.groupby("unique_id").head(2).to_string(index=False, float_format="%.2f"))

# %% How good it is: four days that the model was not trained on, one at a time
validated = forecaster.cross_validation(df, n_windows=4, level=[80])
metrics = [mae, rmse, partial(mase, seasonality=24), coverage]
scores = evaluate(validated, metrics=metrics, train_df=df, level=[80])
print(scores.pivot_table(index="unique_id", columns="metric", values="plfl").round(3).to_string())

# %% A picture, where matplotlib is installed
if importlib.util.find_spec("matplotlib"):
    from utilsforecast.plotting import plot_series

    plot_series(df, forecasts, level=[80, 90], max_insample_length=72).savefig("forecasts.png")

# %% Keep it; later, new readings are enough
forecaster.save("forecaster")
later = plfl.Forecaster.load("forecaster").predict(
    df[df["ds"] < df["ds"].max() - pd.Timedelta(days=1)]
)
print(f"{len(later)} forecasts from {later['ds'].min()} on")
