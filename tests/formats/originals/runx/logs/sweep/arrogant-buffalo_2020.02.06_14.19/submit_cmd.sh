cd /home/logs/sweep/arrogant-buffalo_2020.02.06_14.19/code; PYTHONPATH=  python train.py --lr 0.02 --solver sgd --logdir /home/logs/sweep/arrogant-buffalo_2020.02.06_14.19 
